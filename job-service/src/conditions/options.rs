//! What the operator allows testers to reach.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use framework::http::Url;
use framework::http::confined::{AllowedOrigins, ConfinedClient, Origin};
use framework::tls::Tls;

use crate::conditions::ConditionPace;

/// How the service tests the conditions that tasks wait for.
#[derive(Debug, Clone)]
pub struct ConditionOptions {
    /// How often, and how fast tasks are let go.
    pub pace: ConditionPace,
    /// How long a test may take.
    pub test_limit: Duration,
    /// What may be reached at addresses of the public internet.
    pub targets: Vec<ConditionTarget>,
    /// What may be reached at any address.
    pub private_targets: Vec<ConditionTarget>,
    /// The databases that conditions may name.
    pub databases: BTreeMap<String, ConditionDatabase>,
}

/// Something that testers may reach: `https://host:port` or `tcp://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConditionTarget {
    /// The URLs of an origin.
    Http(Origin),
    /// A port.
    Tcp {
        /// The name or the address of the host, in lower case.
        host: String,
        /// The port.
        port: u16,
    },
}

/// The URL of a database. It may contain a password, so nothing shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct ConditionDatabase(pub String);

impl ConditionOptions {
    /// The setting of [`Self::targets`].
    pub const TARGETS: &'static str = "--condition-targets";
    /// The setting of [`Self::private_targets`].
    pub const PRIVATE_TARGETS: &'static str = "--condition-private-targets";
    /// The setting of [`Self::databases`].
    pub const DATABASES: &'static str = "--condition-databases";
    /// The default of [`Self::test_limit`].
    pub const TEST_LIMIT: Duration = Duration::from_secs(10);

    /// Returns the client of the tests by HTTP.
    pub(super) fn client(&self, tls: &Tls) -> ConfinedClient {
        let origins = |targets: &[ConditionTarget]| {
            let origins = targets.iter().filter_map(|target| match target {
                ConditionTarget::Http(origin) => Some(origin.clone()),
                ConditionTarget::Tcp { .. } => None,
            });
            origins.collect()
        };
        let allowed = AllowedOrigins {
            public: origins(&self.targets),
            private: origins(&self.private_targets),
            who: "a condition",
            setting: Self::TARGETS,
            private_setting: Self::PRIVATE_TARGETS,
        };
        ConfinedClient::new(allowed, tls)
    }
}

impl Default for ConditionOptions {
    fn default() -> Self {
        Self {
            pace: ConditionPace::DEFAULT,
            test_limit: Self::TEST_LIMIT,
            targets: Vec::new(),
            private_targets: Vec::new(),
            databases: BTreeMap::new(),
        }
    }
}

impl FromStr for ConditionTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if !text.starts_with("tcp://") {
            return text.parse().map(Self::Http);
        }
        let refused =
            || format!("{text:?} is not a target; expected one like tcp://db.example.com:5432");
        let url = Url::parse(text).map_err(|_| refused())?;
        let is_bare = matches!(url.path(), "" | "/")
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty();
        match (url.host_str(), url.port()) {
            (Some(host), Some(port)) if is_bare && !host.is_empty() && port > 0 => {
                Ok(Self::tcp(host, port))
            }
            _ => Err(refused()),
        }
    }
}

impl ConditionTarget {
    /// Returns the target of this port, in its normal form.
    pub(super) fn tcp(host: &str, port: u16) -> Self {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Self::Tcp {
            host: host.to_ascii_lowercase(),
            port,
        }
    }
}

impl fmt::Debug for ConditionDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConditionDatabase(…)")
    }
}
