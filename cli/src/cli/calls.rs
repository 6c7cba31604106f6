//! The flags of `up` and `run` that say what simulated tasks may call.

use clap::Args;
use framework::http::confined::Origin;
use simulation_worker::Calls;

use super::api::Switch;

#[derive(Debug, Args)]
#[command(next_help_heading = "Simulation worker")]
pub struct CallArgs {
    /// Origin that the step `HTTP_CALL` of simulated tasks may call, e.g. `https://example.com`;
    /// repeat the flag, or separate origins with commas. Without this flag there are no calls.
    #[arg(long, value_delimiter = ',', value_name = "ORIGIN")]
    simulation_http: Vec<Origin>,
    /// Whether these origins may have addresses of a private network, of the link or of this
    /// machine: `on` or `off`.
    #[arg(long, default_value = "off", value_name = "SWITCH")]
    simulation_http_private: Switch,
}

impl CallArgs {
    /// Returns what simulated tasks may call.
    pub fn calls(self) -> Calls {
        Calls::to(
            self.simulation_http,
            self.simulation_http_private == Switch::On,
        )
    }
}
