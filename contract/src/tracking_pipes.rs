//! The names of tracking pipes: of the shards among which the jobs of an installation are spread,
//! so that several tracking workers write at the same time and each job still has one writer, of
//! later rounds, and of gathered reports. Pure.
//!
//! One shard is the tracking pipe itself, which every version reads. Several are the tracking pipe
//! with a number each. A job keeps its shard in all its rounds, because its messages carry the
//! name; nobody but the job service chooses one.
//!
//! What must stay true: the pipe of a job depends on its incarnation and the number of shards
//! alone.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use crate::{MAX_PIPE_BYTES, same_pipe};

/// The end of the name of the pipe with the reports of later rounds.
const ROUNDS_SUFFIX: &str = ".rounds";
/// The end of the name of the pipe with gathered reports.
const REPORTS_SUFFIX: &str = ".reports";

/// How many tracking pipes new jobs are spread over.
///
/// ```
/// use batchwright_contract::TrackingShards;
///
/// let shards = TrackingShards::new(3).unwrap();
/// assert_eq!(shards.pipe("tracking-in", 7), "tracking-in-1");
/// assert_eq!(TrackingShards::ONE.pipe("tracking-in", 7), "tracking-in");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrackingShards(NonZeroU32);

impl TrackingShards {
    /// The tracking pipe alone.
    pub const ONE: Self = Self(NonZeroU32::MIN);
    /// The largest number.
    pub const MOST: u32 = 64;

    /// Returns this number of shards; `None` for 0, and above [`Self::MOST`].
    pub fn new(number: u32) -> Option<Self> {
        let number = NonZeroU32::new(number)?;
        (number.get() <= Self::MOST).then_some(Self(number))
    }

    /// Returns the number.
    pub const fn number(self) -> u32 {
        self.0.get()
    }

    /// Returns the pipes among which new jobs are spread.
    pub fn pipes(self, tracking: &str) -> Vec<String> {
        match self.number() {
            1 => vec![tracking.to_owned()],
            number => (0..number)
                .map(|shard| shard_pipe(tracking, shard))
                .collect(),
        }
    }

    /// Returns the tracking pipe of the first round of an incarnation of a job.
    pub fn pipe(self, tracking: &str, incarnation: i64) -> String {
        if self == Self::ONE {
            return tracking.to_owned();
        }
        let shard = incarnation.rem_euclid(i64::from(self.number()));
        shard_pipe(tracking, u32::try_from(shard).unwrap_or_default())
    }

    /// Returns the tracking pipe of messages that are sent now, whose job had the pipe `earlier`:
    /// the same one, unless that is a shard which new jobs do not use any more.
    pub fn pipe_again(self, tracking: &str, earlier: &str, incarnation: i64) -> String {
        let is_given_up = shard_of(tracking, earlier)
            .is_some_and(|shard| self == Self::ONE || shard >= self.number());
        if !is_given_up {
            return earlier.to_owned();
        }
        let pipe = self.pipe(tracking, incarnation);
        if pipe_of_first_round(earlier) == earlier {
            pipe
        } else {
            rounds_pipe(&pipe)
        }
    }
}

impl Default for TrackingShards {
    fn default() -> Self {
        Self::ONE
    }
}

impl fmt::Display for TrackingShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for TrackingShards {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().and_then(Self::new);
        number.ok_or_else(|| format!("{text:?} is not a number from 1 to {}", Self::MOST))
    }
}

/// Returns the name of a shard of a tracking pipe. A name that would be too long is that of the
/// tracking pipe.
pub fn shard_pipe(tracking: &str, shard: u32) -> String {
    let pipe = format!("{tracking}-{shard}");
    if tracking.is_empty() || pipe.len() > MAX_PIPE_BYTES {
        return tracking.to_owned();
    }
    pipe
}

/// Returns the tracking pipe of the messages of a job that was taken up again, beside that of its
/// first round. Tracking workers of a version that knows no rounds do not take from it: they would
/// reject the reports of a round, which wait there instead.
///
/// A name that would be too long is that of the first round.
pub fn rounds_pipe(tracking: &str) -> String {
    if tracking.is_empty()
        || tracking.ends_with(ROUNDS_SUFFIX)
        || tracking.len() + ROUNDS_SUFFIX.len() > MAX_PIPE_BYTES
    {
        return tracking.to_owned();
    }
    format!("{tracking}{ROUNDS_SUFFIX}")
}

/// Returns the pipe of the [gathered reports](crate::GatheredReports) for a tracking pipe, of all
/// rounds; `None` if its name would be too long. Only tracking workers that know this form take
/// from it.
pub fn reports_pipe(tracking: &str) -> Option<String> {
    let first = main_pipe(tracking);
    let fits = !first.is_empty() && first.len() + REPORTS_SUFFIX.len() <= MAX_PIPE_BYTES;
    fits.then(|| format!("{first}{REPORTS_SUFFIX}"))
}

/// Returns which shard of a tracking pipe a pipe is or is beside.
fn shard_of(tracking: &str, pipe: &str) -> Option<u32> {
    let (of, shard) = numbered(main_pipe(pipe))?;
    same_pipe(of, tracking).then_some(shard)
}

/// Returns whether a pipe is this tracking pipe or a shard of it, in whatever round and form. Every
/// number that a shard may have counts, so that processes need not agree on the number of shards.
pub fn is_tracking_pipe(tracking: &str, pipe: &str) -> bool {
    same_pipe(main_pipe(tracking), main_pipe(pipe)) || shard_of(main_pipe(tracking), pipe).is_some()
}

/// Returns whether a pipe is among the tracking pipes of the installation in which the messages of
/// one job are tracked in `tracking`, which may be a shard.
pub(crate) fn is_beside_tracking_pipe(tracking: &str, pipe: &str) -> bool {
    let whole = numbered(main_pipe(tracking)).map(|(whole, _)| whole);
    is_tracking_pipe(tracking, pipe) || whole.is_some_and(|whole| is_tracking_pipe(whole, pipe))
}

/// Divides the name of a shard into that of the tracking pipe and the number, if it is one that
/// [`shard_pipe`] makes.
fn numbered(pipe: &str) -> Option<(&str, u32)> {
    let (whole, number) = pipe.rsplit_once('-')?;
    let shard: u32 = number
        .parse()
        .ok()
        .filter(|it| *it < TrackingShards::MOST)?;
    (!whole.is_empty() && number == shard.to_string()).then_some((whole, shard))
}

/// Returns the tracking pipe of the first round beside this one.
fn pipe_of_first_round(pipe: &str) -> &str {
    pipe.strip_suffix(ROUNDS_SUFFIX).unwrap_or(pipe)
}

/// Returns the tracking pipe that this pipe is, or is beside.
fn main_pipe(pipe: &str) -> &str {
    pipe_of_first_round(pipe.strip_suffix(REPORTS_SUFFIX).unwrap_or(pipe))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn shards(number: u32) -> TrackingShards {
        TrackingShards::new(number).unwrap()
    }

    #[test]
    fn one_shard_is_the_tracking_pipe_and_several_have_numbers() {
        assert_eq!(shards(1), TrackingShards::default());
        assert_eq!(shards(1).pipes("t"), ["t"]);
        assert_eq!(shards(3).pipes("t"), ["t-0", "t-1", "t-2"]);
        assert_eq!(shards(64).pipe("t", 63), "t-63");
        let long = "t".repeat(254);
        assert_eq!(shards(3).pipe(&long, 1), long);
    }

    #[test]
    fn number_of_shards_is_bounded() {
        for wrong in ["", "0", "65", "-1", "two", "99999999999"] {
            assert!(wrong.parse::<TrackingShards>().is_err(), "{wrong}");
        }
        let told = "65".parse::<TrackingShards>().unwrap_err();
        assert_eq!(told, "\"65\" is not a number from 1 to 64");
        assert_eq!("64".parse(), Ok(shards(64)));
        assert_eq!(shards(64).to_string(), "64");
    }

    #[test]
    fn job_stays_in_its_pipe_unless_that_is_a_shard_that_new_jobs_do_not_use() {
        for (number, earlier, expected) in [
            (1, "t", "t"),
            (3, "t", "t"),
            (3, "t.rounds", "t.rounds"),
            (3, "t-2", "t-2"),
            (3, "t-2.rounds", "t-2.rounds"),
            (3, "t-3", "t-1"),
            (3, "t-3.rounds", "t-1.rounds"),
            (1, "t-0", "t"),
            (1, "t-3.rounds", "t.rounds"),
            // Another installation's, or no shard.
            (3, "other-9", "other-9"),
            (3, "t-64", "t-64"),
            (3, "t-03", "t-03"),
        ] {
            let pipe = shards(number).pipe_again("t", earlier, 7);
            assert_eq!(pipe, expected, "{earlier} of {number}");
        }
    }

    #[test]
    fn reports_of_all_rounds_are_gathered_in_one_pipe() {
        for tracking in ["t-in-2", "t-in-2.rounds", "t-in-2.reports"] {
            assert_eq!(reports_pipe(tracking).as_deref(), Some("t-in-2.reports"));
        }
        assert_eq!(reports_pipe(&"t".repeat(248)), None);
        assert_eq!(reports_pipe(""), None);
    }

    #[test]
    fn shards_are_tracking_pipes_in_every_round_and_what_looks_alike_is_not() {
        for (tracking, pipe, expected) in [
            ("t-in", "t-in", true),
            ("t-in", "T-In", true),
            ("t-in", "t-in-0", true),
            ("t-in", "T-in-63.rounds", true),
            ("t-in.rounds", "t-in-63", true),
            ("t-in", "t-in-63.reports", true),
            ("t-in", "t-in.rounds.reports", true),
            ("t-in", "t-out.reports", false),
            ("t-in", "t-in-64", false),
            ("t-in", "t-in-007", false),
            ("t-in", "t-in-", false),
            ("t-in", "t-in-+1", false),
            ("t-in", "t-in-1-2", false),
            ("t-in", "t-out", false),
            ("t-in-1", "t-in", false),
        ] {
            assert_eq!(is_tracking_pipe(tracking, pipe), expected, "{pipe}");
        }
        for (tracking, pipe, expected) in [
            ("t-in-1.rounds", "t-in", true),
            ("t-in-1", "t-in-2.rounds", true),
            ("t-in", "t-in-2", true),
            ("t-in-1", "t-out-2", false),
        ] {
            assert_eq!(is_beside_tracking_pipe(tracking, pipe), expected, "{pipe}");
        }
    }

    proptest! {
        #[test]
        fn jobs_are_spread_evenly_and_each_has_one_of_the_pipes(number in 1_u32..=64, first in any::<i32>()) {
            let (shards, mut jobs) = (shards(number), BTreeMap::new());
            for incarnation in (i64::from(first)..).take(number as usize * 3) {
                *jobs.entry(shards.pipe("t", incarnation)).or_insert(0) += 1;
            }
            let expected = shards.pipes("t").into_iter().map(|pipe| (pipe, 3));
            prop_assert_eq!(jobs, expected.collect());
        }

        #[test]
        fn pipe_that_is_chosen_is_known_as_that_shard_and_chosen_again(tracking in "[a-z.-]{1,9}(-[0-9]{1,2})?", number in 2_u32..=64, incarnation: i64) {
            let pipe = shards(number).pipe(&tracking, incarnation);
            prop_assert!(shard_of(&tracking, &pipe).is_some_and(|shard| shard < number));
            for pipe in [rounds_pipe(&pipe), reports_pipe(&pipe).unwrap(), pipe] {
                prop_assert!(is_tracking_pipe(&tracking, &pipe));
                prop_assert_eq!(&shards(number).pipe_again(&tracking, &pipe, incarnation), &pipe);
            }
        }
    }
}
