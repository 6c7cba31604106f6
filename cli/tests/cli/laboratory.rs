//! The commands of the laboratory, which is another program.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::binary::{ended, run};

/// Prints its arguments and its input, and fails.
const STAND_IN: &str = "#!/bin/sh\nprintf '%s\\n' \"$@\"\ncat\necho told >&2\nexit 7\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_the_laboratory_run_the_program_beside_this_one_or_say_how_to_build_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("batchwright");
    fs::copy(env!("CARGO_BIN_EXE_batchwright"), &program).unwrap();
    let call = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.env_clear().args(arguments);
        ended(command, "input\n")
    };
    for command in ["bench", "chaos"] {
        for arguments in [&[command][..], &[command, "--help"]] {
            let missing = call(arguments).await.with(2);
            assert!(missing.out.is_empty(), "{missing:?}");
            let how = "cargo build --release -p batchwright-lab";
            assert!(missing.err.contains(how), "{missing:?}");
        }
    }
    let laboratory = folder.path().join("batchwright-lab");
    fs::write(&laboratory, STAND_IN).unwrap();
    fs::set_permissions(&laboratory, fs::Permissions::from_mode(0o755)).unwrap();
    for arguments in [
        &["bench"][..],
        &["bench", "--help"],
        &["bench", "run", "--items", "3", "--log", "info", "-x"],
        &["--log", "debug", "chaos", "--embedded", "--", "a b", ""],
    ] {
        let passed = call(arguments).await.with(7);
        let told = format!("{}\ninput\n", arguments.join("\n"));
        assert_eq!((passed.out, passed.err.as_str()), (told, "told\n"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn help_lists_the_commands_of_the_laboratory() {
    let help = run(&["--help"]).await.with(0).out;
    for command in ["  bench ", "  chaos "] {
        assert!(help.contains(command), "{help}");
    }
}
