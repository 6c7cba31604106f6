//! The program `batchwright-lab`.

use std::process::ExitCode;

use framework::config::env::Variables;

fn main() -> ExitCode {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    batchwright_lab::main(&Variables::new(environment))
}
