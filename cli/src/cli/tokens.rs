//! `batchwright tokens`: creates, lists and revokes tokens of the job service.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use contract::rest::{AccessRole, CreatedToken, NewToken, Partitions, Token};
use framework::clock::Clock;
use store::Store;

use super::connect::{Output, ServiceArgs};
use super::jobs::exit_code_of;
use super::paged::{Listed, each, print_all};
use crate::columns;
use crate::print::{remark, say};
use crate::text::{Field, age, date, escaped, or_empty};

impl Listed for Token {
    const COLUMNS: &[Field<Self>] = columns!(|it, now| {
        text("ID") => it.id.clone();
        text("NAME").cut_to(16) => it.name.clone();
        text("ROLES") => {
            let roles = it.access.roles.iter().map(|role| role.name());
            roles.collect::<Vec<_>>().join(" ")
        };
        text("PARTITIONS").cut_to(12) => {
            let partitions = it.access.partitions.iter().map(ToString::to_string);
            partitions.collect::<Vec<_>>().join(" ")
        };
        number("USED") => or_empty(it.last_use_time.map(|time| age(now - time)));
        text("EXPIRES") => or_empty(it.expire_time.map(|time| match time - now {
            left if left > 0 => format!("in {}", age(left)),
            _ => "expired".to_owned(),
        }));
        text("UNTIL").wide() => or_empty(it.expire_time.map(date));
        text("CREATED").wide() => date(it.create_time);
        text("BY").wide() => or_empty(it.created_by.as_deref());
    });

    fn name(&self) -> String {
        self.id.clone()
    }
}

/// The number of characters of the id of a token.
const ID_CHARS: usize = 15;

#[derive(Debug, Args)]
pub struct TokensArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a token and print it; nobody can read it again.
    Create(CreateArgs),
    /// List the tokens that you may give, without their secrets, the oldest first.
    List(ListArgs),
    /// Revoke tokens: they are refused within five seconds.
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Whose token it is: a person or a program.
    name: String,
    /// What its bearer may do: `view`, `submit`, `operate` or `admin` in its partitions, each of
    /// which contains those before it; `operator` or `metrics` for the installation. Repeat the
    /// flag, or separate roles with commas.
    #[arg(long, value_delimiter = ',', required = true, value_name = "ROLE")]
    role: Vec<AccessRole>,
    /// Partition in which the roles hold, or with a `*` at the end all whose ids begin so; repeat
    /// the flag, or separate them with commas. It replaces `--partition` here.
    #[arg(long = "in", value_delimiter = ',', value_name = "PARTITIONS")]
    partitions: Vec<Partitions>,
    /// How long it is valid, e.g. `90d`, `12h` or `P1Y`; without this flag, until it is revoked.
    #[arg(long, value_parser = validity, value_name = "DURATION")]
    expires: Option<Duration>,
    /// URL of the database in which to create it, e.g. for the first administrator:
    /// `sqlite:batchwright-data/jobs.db` or `postgres://…`; no job service is asked.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct RevokeArgs {
    /// Ids of the tokens: their beginnings, as `list` shows them.
    #[arg(required = true)]
    id: Vec<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn tokens(args: TokensArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Create(args) => create(args).await,
        Action::List(args) => {
            let listed = args.service.client()?.tokens().await?;
            print_all(args.service.output, &listed.tokens)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Revoke(args) => revoke(args).await,
    }
}

async fn create(args: CreateArgs) -> anyhow::Result<ExitCode> {
    let until = |valid: Duration| {
        let valid = i64::try_from(valid.as_millis()).unwrap_or(i64::MAX);
        Clock::system().now_millis().saturating_add(valid)
    };
    let new = NewToken {
        name: args.name,
        roles: args.role,
        partitions: args.partitions,
        expire_time: args.expires.map(until),
    };
    let created = match &args.database {
        Some(url) => {
            let store = Store::open(url).await?;
            let created = job_service::create_token(&store, new).await;
            store.close().await;
            let (secret, token) = created.map_err(|problem| anyhow!(problem))?;
            CreatedToken { secret, token }
        }
        None => args.service.client()?.create_token(&new).await?,
    };
    match args.service.output {
        Output::Json | Output::Ndjson => say!("{}", serde_json::to_string(&created)?),
        Output::Name | Output::Table | Output::Wide => {
            say!("{}", created.secret);
            remark!(
                "batchwright: keep the token, nobody can read it again; its id is {}",
                created.token.id
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn revoke(args: RevokeArgs) -> anyhow::Result<ExitCode> {
    let (client, output) = (args.service.client()?, args.service.output);
    let revoked = each(&args.id, output, async |id| {
        // A person may paste the whole token; only its id goes into the URL.
        let id = match id.get(..ID_CHARS) {
            Some(beginning) if id.starts_with("bw_") => beginning,
            _ => id,
        };
        client.revoke_token(id).await?;
        match output {
            Output::Json | Output::Ndjson => say!("{}", serde_json::json!({ "id": id })),
            Output::Name => say!("{}", escaped(id)),
            Output::Table | Output::Wide => say!("{} revoked", escaped(id)),
        }
        Ok(())
    });
    Ok(exit_code_of(revoked.await? == args.id.len()))
}

/// Parses how long a token is valid: `90d` stands for `P90D`, and `12h` for `PT12H`.
fn validity(text: &str) -> Result<Duration, String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let days = text.strip_suffix('d').filter(|it| is_number(it));
    let hours = text.strip_suffix('h').filter(|it| is_number(it));
    match (days, hours) {
        (Some(days), _) => store::span(&format!("P{days}D")),
        (_, Some(hours)) => store::span(&format!("PT{hours}H")),
        _ => store::span(text),
    }
}
