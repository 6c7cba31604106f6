//! Tests that `docs/reference/variables.md` documents every variable that is read, and
//! `docs/from-caf.md` CAF's variables.

mod commands;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::{self, Write as _};

use clap::{Command, CommandFactory as _};
use framework::broker::amqp::QueueType;
use framework::config::caf::{self, Conversion, Reader};
use framework::config::env::Variables;
use framework::config::{PREFIX, VARIABLES, Variable, names_of_other_programs};
use harness::check_page;

use crate::cli::{self, Cli, Program};
use crate::config::*;

/// CAF's variables that have no effect, with the reason.
const NOT_READ: &[(&[&str], &str)] = &[
    (
        &[
            "CAF_RABBITMQ_BACKOFF_INTERVAL",
            "CAF_RABBITMQ_MAX_BACKOFF_INTERVAL",
            "CAF_RABBITMQ_MAX_ATTEMPTS",
        ],
        "a worker reconnects forever, with a fixed back-off",
    ),
    (
        &["CAF_WORKER_RETRY_QUEUE"],
        "a retried task returns to the input pipe through a delay pipe",
    ),
    (
        &["CAF_WORKER_FRIENDLY_NAME"],
        "failures contain the name of the worker",
    ),
    (
        &["CAF_WORKER_ENABLE_DIVERTED_TASK_CHECKING"],
        "a worker always diverts messages that are addressed to another pipe",
    ),
    (
        &["CAF_WORKER_REPORT_UPDATES_BUFFER_LIMIT"],
        "the number of reports in one message adapts to the load",
    ),
    (
        &["CAF_WORKER_MAX_BATCH_TIME"],
        "the tracking worker handles all waiting reports at once and never waits for more",
    ),
    (
        &[
            "CAF_WORKER_DATASTORE_PATH",
            "CAF_WORKER_DATASTORE_HEALTHCHECK_TIMEOUT_SECONDS",
            "CAF_WORKER_DATASTORE_OUTPUT_BUFFER_SIZE",
            "CAF_WORKER_DATASTORE_BUFFER_SIZE",
            "CAF_WORKER_HTTP_DATASTORE_URL",
            "CAF_WORKER_HTTP_DATASTORE_CONNECT_TIMEOUT_MILLIS",
            "CAF_WORKER_HTTP_DATASTORE_READ_TIMEOUT_MILLIS",
        ],
        "there is no worker data store",
    ),
    (
        &[
            "CAF_WORKER_PAYLOAD_OFFLOADING_ENABLED",
            "CAF_WORKER_PAYLOAD_OFFLOADING_THRESHOLD_BYTES",
        ],
        "payloads are always part of the message",
    ),
    (
        &["CAF_WORKER_FAILURE_QUEUE"],
        "there is no separate scheduler process",
    ),
    (
        &[
            "CAF_BATCH_WORKER_CACHE_EXPIRE_TIME",
            "CAF_BATCH_WORKER_ERROR_QUEUE",
        ],
        "the batch worker has no cache; it reports failures and copies them to its reject pipe",
    ),
    (
        &[
            "CAF_LIVENESS_INITIAL_DELAY_SECONDS",
            "CAF_LIVENESS_CHECK_INTERVAL_SECONDS",
            "CAF_LIVENESS_DOWNTIME_INTERVAL_SECONDS",
            "CAF_LIVENESS_SUCCESS_ATTEMPTS",
            "CAF_LIVENESS_FAILURE_ATTEMPTS",
            "CAF_READINESS_INITIAL_DELAY_SECONDS",
            "CAF_READINESS_CHECK_INTERVAL_SECONDS",
            "CAF_READINESS_DOWNTIME_INTERVAL_SECONDS",
            "CAF_READINESS_SUCCESS_ATTEMPTS",
            "CAF_READINESS_FAILURE_ATTEMPTS",
            "JOB_SERVICE_LIVENESS_INITIAL_DELAY_DURATION",
            "JOB_SERVICE_LIVENESS_CHECK_INTERVAL_DURATION",
            "JOB_SERVICE_LIVENESS_DOWNTIME_INTERVAL_DURATION",
            "JOB_SERVICE_LIVENESS_FAILURE_ATTEMPTS",
            "JOB_SERVICE_LIVENESS_SUCCESS_ATTEMPTS",
            "JOB_SERVICE_READINESS_INITIAL_DELAY_DURATION",
            "JOB_SERVICE_READINESS_CHECK_INTERVAL_DURATION",
            "JOB_SERVICE_READINESS_DOWNTIME_INTERVAL_DURATION",
            "JOB_SERVICE_READINESS_FAILURE_ATTEMPTS",
            "JOB_SERVICE_READINESS_SUCCESS_ATTEMPTS",
            "JOB_SERVICE_INTERNAL_PING_URL",
        ],
        "health is checked when a health request arrives",
    ),
    (
        &[
            "CAF_CONFIG_PATH",
            "CAF_RESOURCE_PATH",
            "CAF_CONFIG_DECODER",
            "CAF_CONFIG_ENABLE_SUBSTITUTOR",
            "JOB_SERVICE_API_CONFIG_PATH",
            "MARATHON_APP_ID",
        ],
        "there are no configuration files",
    ),
    (
        &["CAF_ENABLE_ENV_SECRETS", "CAF_ENABLE_FILE_SECRETS"],
        "both are always enabled; the variable takes precedence over the file",
    ),
    (
        &[
            "CAF_SCHEDULER_INPUT_QUEUE",
            "CAF_SCHEDULED_EXECUTOR_PERIOD",
            "CAF_DROP_TABLES_SCHEDULER_PERIOD",
        ],
        "nothing is polled; a commit wakes the relay and the sweeper",
    ),
    (
        &[
            "CAF_JOB_TRACKING_PROPAGATE_FAILURES",
            "CAF_JOB_SCHEDULER_PROPAGATE_FAILURES",
        ],
        "CAF does not read them either",
    ),
    (
        &[
            "CAF_WORKER_TASKSTOWING_DATABASE_HOST",
            "CAF_WORKER_TASKSTOWING_DATABASE_PORT",
            "CAF_WORKER_TASKSTOWING_DATABASE_NAME",
            "CAF_WORKER_TASKSTOWING_DATABASE_TABLENAME",
            "CAF_WORKER_TASKSTOWING_DATABASE_USERNAME",
            "CAF_WORKER_TASKSTOWING_DATABASE_PASSWORD",
            "CAF_WORKER_TASKSTOWING_DATABASE_APPNAME",
            "CAF_WORKER_TASKSTOWING_DATABASE_MAXIMUM_POOL_SIZE",
        ],
        "tasks of paused jobs are stored in the job service's database",
    ),
    (
        &[
            "SSL_KEYSTORE_PATH",
            "SSL_KEYSTORE",
            "SSL_KEYSTORE_TYPE",
            "SSL_KEYSTORE_PASSWORD",
            "SSL_CERT_ALIAS",
            "SSL_VALIDATE_CERTS",
            "SSL_DISABLE_SNI_HOST_CHECK",
        ],
        "use a proxy for HTTPS",
    ),
    (
        &[
            "JOB_SERVICE_JAVA_OPTS",
            "CRASH_DUMP_ON_OUT_OF_MEMORY_ERROR",
            "HEAP_DUMP_ON_OUT_OF_MEMORY_ERROR",
            "CRASH_DUMP_FILE_PATH",
        ],
        "there is no Java virtual machine",
    ),
    (
        &["CAF_JOB_SERVICE_RESUME_JOB_QUEUE"],
        "the job service itself sends the tasks of a resumed job",
    ),
];

/// Returns the tables of our own variables.
fn tables() -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "### `batchwright up`, `batchwright run ROLE`\n\n| variable | flag | default | |\n|---|---|---|---|"
    );
    let command = Cli::command();
    let serving = SERVING
        .iter()
        .filter_map(|name| command.find_subcommand(name))
        .flat_map(Command::get_arguments);
    let mut rows = BTreeMap::new();
    for arg in command.get_arguments().chain(serving) {
        let Some(name) = own_name(arg) else { continue };
        let default = arg.get_default_values().first().map_or_else(
            || "none".to_owned(),
            |value| format!("`{}`", value.to_string_lossy()),
        );
        let file = if SECRET.contains(&name.as_str()) {
            format!("<br>`{name}_FILE`")
        } else {
            String::new()
        };
        let meaning = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let row = format!(
            "| `{name}`{file} | `--{}` | {default} | {meaning} |",
            arg.get_long().unwrap_or_default(),
        );
        rows.insert(name, row);
    }
    for row in rows.values() {
        let _ = writeln!(text, "{row}");
    }
    let _ = writeln!(
        text,
        "\n### A worker (`Runtime::from_env`)\n\n| variable | default | |\n|---|---|---|"
    );
    for variable in VARIABLES {
        let own: Vec<String> = variable
            .own_names()
            .map(|name| format!("`{name}`"))
            .collect();
        let default = if variable.default == "none" {
            "none".to_owned()
        } else {
            format!("`{}`", variable.default)
        };
        let _ = writeln!(
            text,
            "| {} | {default} | {} |",
            own.join("<br>"),
            variable.meaning
        );
    }
    text
}

/// Returns the tables of CAF's variables.
fn caf_tables() -> String {
    let mut read: BTreeMap<String, BTreeMap<String, Vec<&str>>> = BTreeMap::new();
    let readers = [
        (Reader::Program, "`up`, `run`"),
        (Reader::Worker, "workers"),
    ];
    for (reader, who) in readers {
        for setting in caf::settings(reader) {
            for (name, conversion) in setting.caf {
                let own = format!("`{PREFIX}{}`{}", setting.own, converted(*conversion));
                let file = if name.ends_with("_PASSWORD") {
                    format!("<br>`{name}_FILE`")
                } else {
                    String::new()
                };
                let meanings = read.entry(format!("`{name}`{file}")).or_default();
                meanings.entry(own).or_default().push(who);
            }
        }
    }
    let mut text = "| CAF's variable | sets | read by |\n|---|---|---|\n".to_owned();
    for (name, meanings) in read {
        for (own, who) in meanings {
            let _ = writeln!(text, "| {name} | {own} | {} |", who.join(", "));
        }
    }
    text.push_str("\nThese are not read:\n\n| CAF's variables | why not |\n|---|---|\n");
    for (names, why) in NOT_READ {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(text, "| {} | {why} |", names.join("<br>"));
    }
    text
}

/// Says how the value of CAF's variable becomes that of ours.
fn converted(conversion: Conversion) -> &'static str {
    match conversion {
        Conversion::Same | Conversion::Lowercase | Conversion::TrimSlash => "",
        Conversion::UrlPart => ", a part of the URL",
        Conversion::AppendIn => ", with `-in`",
        Conversion::AddConcurrency => ", + concurrency",
        Conversion::AddOne => ", + 1",
        Conversion::AboveZero => ", when above 0",
        Conversion::Not => ", negated",
    }
}

#[test]
fn pages_list_the_variables_that_are_read_and_ignored() {
    check_page("docs/reference/variables.md", "tables", &tables());
    check_page("docs/from-caf.md", "tables", &caf_tables());
}

#[test]
fn no_variable_is_both_read_and_ignored() {
    let read: Vec<&str> = caf::SETTINGS
        .iter()
        .flat_map(|setting| setting.caf)
        .map(|(name, _)| *name)
        .collect();
    for (names, _) in NOT_READ {
        assert_eq!(names.iter().find(|name| read.contains(name)), None);
    }
    let known = known(&Cli::command());
    for setting in caf::SETTINGS {
        let own = format!("{PREFIX}{}", setting.own);
        assert!(known.contains(&own), "{own}");
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings
            .iter()
            .try_for_each(|setting| writeln!(f, "{setting}"))
    }
}

fn variables(all: &[(&str, &str)]) -> Variables {
    Variables::new(
        all.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    )
}

fn configuration(arguments: &str, all: &[(&str, &str)]) -> Result<String, String> {
    let arguments = format!("batchwright {arguments}");
    match read::<Cli>(arguments.split(' ').map(OsString::from), &variables(all)) {
        Ok((_, configuration)) => Ok(configuration.to_string()),
        Err(Refusal::Variable(error)) => Err(error.to_string()),
        Err(Refusal::Context(problem)) => Err(problem),
        Err(Refusal::CommandLine(error, from)) => Err(format!("{error}from {from:?}")),
    }
}

const CAF_SERVERS: [(&str, &str); 9] = [
    ("JOB_SERVICE_DATABASE_HOST", "db"),
    ("JOB_SERVICE_DATABASE_NAME", "jobs"),
    ("JOB_SERVICE_DATABASE_USERNAME", "ann"),
    ("JOB_SERVICE_DATABASE_PASSWORD", "p@ss/word"),
    ("JOB_SERVICE_DATABASE_APPNAME", "job service"),
    ("CAF_RABBITMQ_HOST", "mq"),
    ("CAF_RABBITMQ_PASSWORD", "secret"),
    ("CAF_WORKER_THREADS", "3"),
    ("CAF_RABBITMQ_PREFETCH_BUFFER", "4"),
];

#[test]
fn precedence_is_flag_then_own_variable_then_caf_then_default() {
    let caf = [
        &CAF_SERVERS[..],
        &[
            ("CAF_JOB_SERVICE_PAGE_SIZE", "7"),
            ("CAF_WEBSERVICE_URL", "http://service"),
        ],
    ]
    .concat();
    let settings = configuration("run job-service --page-size 9", &caf).unwrap();
    for line in [
        "database=postgres://ann:***@db:5432/jobs?application_name=job%20service (JOB_SERVICE_DATABASE_*)",
        "broker=amqp://guest:***@mq:5672/%2f (CAF_RABBITMQ_*)",
        "page-size=9 (--page-size)",
        "public-url=http://service (CAF_WEBSERVICE_URL)",
        "concurrency=3 (CAF_WORKER_THREADS)",
        "prefetch=7 (CAF_RABBITMQ_PREFETCH_BUFFER)",
        "status-interval=5 (default)",
    ] {
        assert!(
            settings.lines().any(|setting| setting == line),
            "{line} in\n{settings}"
        );
    }
    // As in CAF, a page size of 0 or less counts as not set.
    for size in ["0", "-1"] {
        let settings = configuration("up", &[("CAF_JOB_SERVICE_PAGE_SIZE", size)]).unwrap();
        assert!(
            settings
                .lines()
                .any(|setting| setting == "page-size=25 (default)"),
            "{settings}"
        );
    }
    // Commands that do not serve ignore CAF's variables.
    let settings = configuration("doctor", &caf).unwrap();
    assert!(!settings.contains("mq:5672"), "{settings}");
    assert!(
        !configuration(
            "run job-service",
            &[
                ("BATCHWRIGHT_DATABASE", "postgres://own/db"),
                CAF_SERVERS[0]
            ]
        )
        .unwrap()
        .contains("@db:")
    );
}

#[test]
fn queues_are_declared_as_our_settings_or_cafs_say_on_connections_with_the_name_of_the_role() {
    let caf = [
        ("CAF_RABBITMQ_MAX_PRIORITY", "5"),
        ("CAF_RABBITMQ_QUEUE_TYPE", "classic"),
    ];
    let servers = "--broker amqp://host --database postgres://host";
    for (variables, flag, expected) in [
        (&[][..], "", (QueueType::Quorum, 0)),
        (&caf, "", (QueueType::Classic, 5)),
        (&caf, " --max-priority 7", (QueueType::Classic, 7)),
    ] {
        for command in ["up", "run tracking-worker", "run job-service"] {
            let arguments = format!("batchwright {command} {servers}{flag}");
            let (cli, _) = read::<Cli>(
                arguments.split(' ').map(OsString::from),
                &self::variables(variables),
            )
            .unwrap();
            let options = match cli.program {
                Program::Command(cli::Command::Up(args)) => args.options(&Variables::default()),
                Program::Command(cli::Command::Run(args)) => args.options(&Variables::default()),
                other => panic!("{other:?}"),
            };
            let amqp = options.unwrap().amqp().unwrap();
            assert_eq!((amqp.queue_type, amqp.max_priority), expected, "{command}");
            let name = match command.strip_prefix("run ") {
                Some(role) => format!("batchwright {role}"),
                None => "batchwright".to_owned(),
            };
            assert_eq!(amqp.name, name);
        }
    }
    let refusal = configuration("up", &[("CAF_RABBITMQ_MAX_PRIORITY", "256")]).unwrap_err();
    assert!(
        refusal.contains("'--max-priority <PRIORITY>'")
            && refusal.ends_with("from Some(\"CAF_RABBITMQ_MAX_PRIORITY\")"),
        "{refusal}"
    );
}

#[test]
fn variable_that_only_a_worker_program_reads_is_named_in_the_log() {
    let ignored = |arguments: &str, all: &[(&str, &str)]| {
        let arguments = format!("batchwright {arguments}");
        let arguments = arguments.split(' ').map(OsString::from);
        let (_, configuration) = read::<Cli>(arguments, &variables(all)).unwrap();
        configuration.unused
    };
    let all = [
        ("BATCHWRIGHT_ATTEMPTS", "3"),
        ("BATCHWRIGHT_MAX_PRIORITY", "3"),
        ("BATCHWRIGHT_NAME", ""),
        ("BATCHWRIGHT_PARTITION", "for the client commands"),
    ];
    assert_eq!(ignored("up", &all), ["BATCHWRIGHT_ATTEMPTS"]);
    // The client commands read almost none of the settings, and log nothing.
    assert_eq!(ignored("up", &all[1..]), [""; 0]);
}

#[test]
fn worker_ignores_each_variable_that_only_this_program_reads() {
    let own: Vec<String> = VARIABLES.iter().flat_map(Variable::own_names).collect();
    let mut others = known(&Cli::command());
    others.retain(|name| !own.contains(name));
    let ignored: Vec<String> = names_of_other_programs().collect();
    assert_eq!(others, ignored);
}

#[test]
fn error_names_the_variable_of_an_invalid_value() {
    let refusal = configuration(
        "run tracking-worker",
        &[("CAF_STATUS_CHECK_INTERVAL_SECONDS", "often")],
    )
    .unwrap_err();
    assert!(
        refusal.contains("invalid value 'often' for '--status-interval")
            && refusal.ends_with("from Some(\"CAF_STATUS_CHECK_INTERVAL_SECONDS\")"),
        "{refusal}"
    );
    let refusal =
        configuration("up --page-size 0", &[("CAF_JOB_SERVICE_PAGE_SIZE", "7")]).unwrap_err();
    assert!(refusal.ends_with("from None"), "{refusal}");
    for (name, value, text) in [
        (
            "BATCHWRIGHT_JOB_TYPE",
            "x",
            "the variable BATCHWRIGHT_JOB_TYPE is not a setting of batchwright; did you mean BATCHWRIGHT_JOB_TYPES?",
        ),
        (
            "CAF_RABBITMQ_PORT",
            "x",
            "the variable CAF_RABBITMQ_PORT is \"x\": invalid digit found in string",
        ),
        (
            "BATCHWRIGHT_DATABASE_FILE",
            "/no/such",
            "the variable BATCHWRIGHT_DATABASE_FILE names \"/no/such\", which cannot be read: No such file or directory (os error 2)",
        ),
    ] {
        assert_eq!(configuration("up", &[(name, value)]).unwrap_err(), text);
    }
    let input = [
        ("BATCHWRIGHT_INPUT_PIPE", "known to workers"),
        ("BATCHWRIGHT_ATTEMPTS", "3"),
        ("OTHER_THING", ""),
    ];
    assert!(configuration("get j", &input).is_ok());
    let help = configuration(
        "up --help",
        &[
            ("BATCHWRIGHT_DATABASE_FILE", "/no/such"),
            ("CAF_RABBITMQ_PASSWORD", "secret"),
            ("BATCHWRIGHT_X", ""),
        ],
    )
    .unwrap_err();
    assert!(
        help.contains("Usage: ") && !help.contains("secret"),
        "{help}"
    );
}
