//! The flags of `up` and `run` about the conditions that tasks wait for.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use job_service::{
    ConditionDatabase, ConditionOptions, ConditionPace, ConditionTarget, StuckLimits,
};

/// How the job service tests conditions, what its tests may reach, and how fast tasks are let go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Conditions")]
pub struct ConditionArgs {
    /// Origins and ports that tests of conditions may reach, separated by commas, e.g.
    /// `https://api.example.com` or `tcp://db.example.com:5432`; at addresses of the public
    /// internet.
    #[arg(long, value_delimiter = ',', value_name = "TARGETS")]
    condition_targets: Vec<ConditionTarget>,
    /// Origins and ports that tests of conditions may reach at any address, also in private
    /// networks and on this machine.
    #[arg(long, value_delimiter = ',', value_name = "TARGETS")]
    condition_private_targets: Vec<ConditionTarget>,
    /// Databases that conditions may name, separated by commas: a name and a URL, e.g.
    /// `orders=postgres://reader@db/orders`.
    #[arg(long, hide_env_values = true, value_delimiter = ',', value_parser = named_database, value_name = "NAME=URL")]
    condition_databases: Vec<(String, Hidden)>,
    /// Seconds that a test of a condition may take.
    #[arg(long, default_value_t = ConditionOptions::TEST_LIMIT.as_secs(), value_parser = clap::value_parser!(u64).range(1..=300), value_name = "SECONDS")]
    condition_test_limit: u64,
    /// Seconds between two tests of a condition at the least, whatever its policy says.
    #[arg(long, default_value_t = ConditionPace::DEFAULT.test_interval.as_secs(), value_parser = clap::value_parser!(u64).range(1..=86_400), value_name = "SECONDS")]
    condition_interval: u64,
    /// Seconds after which another task is let go as canary if one is silent.
    #[arg(long, default_value_t = ConditionPace::DEFAULT.canary_limit.as_secs(), value_parser = clap::value_parser!(u64).range(1..=86_400), value_name = "SECONDS")]
    canary_limit: u64,
    /// Number of tasks that are sent again in the first second after their condition has passed;
    /// each further second twice as many.
    #[arg(long, default_value_t = ConditionPace::DEFAULT.first_release, value_parser = clap::value_parser!(u32).range(1..), value_name = "TASKS")]
    first_release: u32,
    /// Number of tasks of one condition that are sent again in a second at the most.
    #[arg(long, default_value_t = ConditionPace::DEFAULT.most_released, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "TASKS")]
    most_released: u32,
    /// Seconds after which the log and the jobs name a condition that tasks still wait for.
    #[arg(long, default_value_t = StuckLimits::CONDITION.as_secs(), value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    old_condition: u64,
}

/// A URL that may contain a password.
#[derive(Clone)]
struct Hidden(String);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl ConditionArgs {
    /// Returns how long tasks wait for a condition before that is told.
    pub const fn old_condition(&self) -> Duration {
        Duration::from_secs(self.old_condition)
    }

    /// Returns the options of the job service.
    pub fn options(self) -> anyhow::Result<ConditionOptions> {
        let mut databases = BTreeMap::new();
        for (name, Hidden(url)) in self.condition_databases {
            if databases
                .insert(name.clone(), ConditionDatabase(url))
                .is_some()
            {
                bail!(
                    "{} names the database {name:?} twice",
                    ConditionOptions::DATABASES
                );
            }
        }
        Ok(ConditionOptions {
            pace: ConditionPace {
                test_interval: Duration::from_secs(self.condition_interval),
                canary_limit: Duration::from_secs(self.canary_limit),
                first_release: self.first_release,
                most_released: self.most_released,
            },
            test_limit: Duration::from_secs(self.condition_test_limit),
            targets: self.condition_targets,
            private_targets: self.condition_private_targets,
            databases,
        })
    }
}

fn named_database(text: &str) -> Result<(String, Hidden), String> {
    let Some((name, url)) = text.split_once('=') else {
        // The text may be a URL with a password.
        return Err("it is not NAME=URL, e.g. orders=postgres://reader@db/orders".to_owned());
    };
    let name = name.trim();
    let is_name = !name.is_empty()
        && name.len() <= contract::Condition::MAX_NAME
        && !name.contains(char::is_control);
    if !is_name {
        return Err(format!(
            "{name:?} is not a name; expected 1 to {} bytes without control characters",
            contract::Condition::MAX_NAME
        ));
    }
    let url = url.trim();
    if !["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return Err(format!(
            "the URL of {name:?} does not begin with postgres:// or postgresql://"
        ));
    }
    Ok((name.to_owned(), Hidden(url.to_owned())))
}
