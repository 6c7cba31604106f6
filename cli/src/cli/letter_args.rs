//! The flags of `up` and `run` about dead letters.

use std::time::Duration;

use clap::Args;
use job_service::LetterOptions;
use store::LetterLimits;

/// What names the pipes of the program's own workers.
const OWN: &str = "own";
/// What names no pipe.
const NONE: &str = "none";

/// Which dead letters the job service collects, and how many are kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Dead letters")]
pub struct LetterArgs {
    /// Reject and invalid pipes that the job service empties into the list of dead letters,
    /// separated by commas, also those of workers of other makes; `own` stands for those of the
    /// program's own workers. By default `own` in `up`, and `none` in `run`.
    #[arg(long, value_delimiter = ',', value_name = "PIPES")]
    dead_letter_pipes: Vec<String>,
    /// Number of dead letters that are kept; further ones wait in their pipes.
    #[arg(long, default_value_t = LetterLimits::DEFAULT.letters, value_parser = clap::value_parser!(u64).range(1..), value_name = "LETTERS")]
    max_dead_letters: u64,
    /// Number of dead letters of one job that are kept; further ones go to the overflow pipe of
    /// their pipe, `PIPE.overflow`.
    #[arg(long, default_value_t = LetterLimits::DEFAULT.letters_of_job, value_parser = clap::value_parser!(u64).range(1..), value_name = "LETTERS")]
    dead_letters_per_job: u64,
    /// MiB of dead letters that are kept; further ones wait in their pipes.
    #[arg(long, default_value_t = LetterLimits::DEFAULT.bytes >> 20, value_parser = clap::value_parser!(u64).range(1..1 << 40), value_name = "MEGABYTES")]
    dead_letters_size: u64,
    /// MiB of dead letters of one job that are kept; further ones go to the overflow pipe of their
    /// pipe.
    #[arg(long, default_value_t = LetterLimits::DEFAULT.bytes_of_job >> 20, value_parser = clap::value_parser!(u64).range(1..1 << 40), value_name = "MEGABYTES")]
    dead_letters_size_per_job: u64,
    /// Bytes of the body of a dead letter that are kept; of a larger one only so many, and it
    /// cannot be replayed.
    #[arg(long, default_value_t = LetterOptions::DEFAULT_BODY, value_name = "BYTES")]
    max_dead_letter_bytes: usize,
    /// How long dead letters are kept, e.g. `P30D`; older ones are deleted and counted.
    #[arg(long, default_value = "P30D", value_parser = store::span, value_name = "DURATION")]
    keep_dead_letters: Duration,
}

impl LetterArgs {
    /// Returns which letters the job service collects. `own` are the pipes of the program's own
    /// workers.
    pub fn options(&self, is_up: bool, own: impl FnOnce() -> Vec<String>) -> LetterOptions {
        let named = self.dead_letter_pipes.iter().map(|pipe| pipe.trim());
        let mut named: Vec<&str> = named.filter(|pipe| !pipe.is_empty()).collect();
        if named.is_empty() && is_up {
            named.push(OWN);
        }
        let own = if named.contains(&OWN) {
            own()
        } else {
            Vec::new()
        };
        let others = named.into_iter().filter(|pipe| ![OWN, NONE].contains(pipe));
        let mut pipes: Vec<String> = others.map(str::to_owned).chain(own).collect();
        pipes.sort_unstable();
        pipes.dedup();
        LetterOptions {
            pipes,
            max_body: self.max_dead_letter_bytes,
        }
    }

    /// Returns how many letters the store keeps.
    pub const fn limits(&self) -> LetterLimits {
        LetterLimits {
            letters: self.max_dead_letters,
            bytes: self.dead_letters_size << 20,
            letters_of_job: self.dead_letters_per_job,
            bytes_of_job: self.dead_letters_size_per_job << 20,
            kept: self.keep_dead_letters,
        }
    }
}
