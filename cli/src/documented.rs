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

/// Returns the table of those of CAF's variables that are read.
fn caf_table() -> String {
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
fn pages_list_the_variables_that_are_read() {
    check_page("docs/reference/variables.md", "tables", &tables());
    check_page("docs/from-caf.md", "table", &caf_table());
}

#[test]
fn no_variable_is_both_read_and_ignored() {
    let read: Vec<&str> = caf::SETTINGS
        .iter()
        .flat_map(|setting| setting.caf)
        .map(|(name, _)| *name)
        .collect();
    let page = include_str!("../../docs/from-caf.md");
    let (_, ignored) = page.split_once("\nThese are not read:\n").unwrap();
    let rows = ignored.lines().filter(|line| line.starts_with("| `"));
    let ignored: Vec<&str> = rows
        .flat_map(|row| row.split('`').skip(1).step_by(2))
        .collect();
    assert!(ignored.len() > 50, "{ignored:?}");
    assert_eq!(ignored.iter().find(|name| read.contains(name)), None);
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
    ("CAF_RABBITMQ_PASSWORD", "hunter2"),
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
        help.contains("Usage: ") && !help.contains("hunter2"),
        "{help}"
    );
}
