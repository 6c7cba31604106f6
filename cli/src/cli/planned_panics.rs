//! Panics that a test plans in a running process. Only builds for tests have them (feature
//! `internals`).

use std::convert::Infallible;

use clap::Args;
use framework::health::Health;

#[derive(Debug, Clone, Copy, Args)]
pub struct PanicArgs {
    /// Panics each loop that a line of standard input names.
    #[cfg(feature = "internals")]
    #[arg(long, hide = true)]
    panics_from_stdin: bool,
}

impl PanicArgs {
    /// Plans panics as standard input says. Plans none in a build that is not for tests.
    #[cfg_attr(
        not(feature = "internals"),
        expect(unused_variables, reason = "only builds for tests plan panics")
    )]
    pub async fn plan(self, health: &Health) -> Infallible {
        #[cfg(feature = "internals")]
        if self.panics_from_stdin {
            use tokio::io::{AsyncBufReadExt as _, BufReader};

            let mut lines = BufReader::new(tokio::io::stdin()).lines();
            while let Ok(Some(name)) = lines.next_line().await {
                health.plan_panic(&name);
            }
        }
        std::future::pending().await
    }
}
