//! Policies with names: those of the systems whose promises Batchwright keeps, to the number.
//!
//! Aloe's policies count *tries*, which are the delays here, not the attempts. Three of their
//! defects are not copied: a step that runs once too often, a time limit of three hours that is
//! written as 125 days, and a time that begins again with the process.

use std::time::Duration;

use super::{Anchor, Delays, RetryPolicy, Step};

/// A policy with a name.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// The name, as in settings and requests.
    pub name: &'static str,
    /// Where the policy is from, for the documentation.
    pub origin: &'static str,
    delays: Numbers,
    /// How many attempts there are; `None` is no limit.
    attempts: Option<u32>,
    within: Option<Duration>,
}

/// The numbers of a preset.
#[derive(Debug, Clone, Copy)]
enum Numbers {
    Immediate,
    /// Seconds between attempts.
    Seconds(u64),
    /// The first delay, doubled; the longest one; and since when they count.
    Doubled(u64, Option<u64>, Anchor),
    /// How often each delay comes, and seconds. The last one comes for ever if its number is 0.
    Steps(&'static [(u32, u64)]),
}

const fn preset(name: &'static str, origin: &'static str, delays: Numbers) -> Preset {
    Preset {
        name,
        origin,
        delays,
        attempts: None,
        within: None,
    }
}

const TWO_DAYS: Option<Duration> = Some(Duration::from_hours(48));
const THREE_HOURS: Option<Duration> = Some(Duration::from_hours(3));

/// All presets.
pub const PRESETS: &[Preset] = &[
    Preset {
        attempts: Some(11),
        ..preset(
            "caf",
            "[CAF](../from-caf.md): the message comes again at once, up to 10 times",
            Numbers::Immediate,
        )
    },
    Preset {
        attempts: Some(10),
        ..preset(
            "jobweaver",
            "JobWeaver: min(5·2ⁿ, 300) seconds; it takes the number from the request",
            Numbers::Doubled(10, Some(300), Anchor::Failure),
        )
    },
    Preset {
        attempts: Some(10),
        ..preset(
            "quantumleap",
            "QuantumLeap: 20 seconds, doubled, from the first attempt on; it takes the number from a setting",
            Numbers::Doubled(20, None, Anchor::Start),
        )
    },
    Preset {
        within: TWO_DAYS,
        ..preset(
            "aloe-constant",
            "Aloe: CONSTANT_BACKOFF with its defaults",
            Numbers::Seconds(60),
        )
    },
    Preset {
        within: TWO_DAYS,
        ..preset(
            "aloe-stepwise",
            "Aloe: STEPWISE_BACKOFF with its defaults",
            Numbers::Steps(&[(2, 10), (10, 20), (10, 60), (100, 120), (0, 300)]),
        )
    },
    Preset {
        within: TWO_DAYS,
        ..preset(
            "system-not-available",
            "Aloe: SYSTEM_NOT_AVAILABLE",
            Numbers::Seconds(60),
        )
    },
    Preset {
        within: TWO_DAYS,
        ..preset(
            "application-not-available",
            "Aloe: APPLICATION_NOT_AVAILABLE",
            Numbers::Seconds(60),
        )
    },
    Preset {
        within: TWO_DAYS,
        ..preset(
            "quota-exceeded",
            "Aloe: QUOTA_EXCEEDED",
            Numbers::Seconds(60),
        )
    },
    Preset {
        within: TWO_DAYS,
        ..preset(
            "service-connection-failure",
            "Aloe: SERVICE_CONNECTION_FAILURE",
            Numbers::Steps(&[(5, 60), (30, 120)]),
        )
    },
    Preset {
        within: TWO_DAYS,
        ..preset(
            "ssh-connection-failure",
            "Aloe: SSH_CONNECTION_FAILURE",
            Numbers::Steps(&[(5, 60), (5, 120), (3, 300)]),
        )
    },
    Preset {
        within: TWO_DAYS,
        ..preset(
            "ssh-connection-timeout",
            "Aloe: SSH_CONNECTION_TIMEOUT",
            Numbers::Steps(&[(5, 60), (5, 120), (10, 300)]),
        )
    },
    Preset {
        attempts: Some(16),
        within: THREE_HOURS,
        ..preset(
            "ssh-authentication-failed",
            "Aloe: SSH_AUTHENTICATION_FAILED",
            Numbers::Seconds(60),
        )
    },
    Preset {
        attempts: Some(4),
        within: THREE_HOURS,
        ..preset(
            "first-ssh-authentication-failed",
            "Aloe: FIRST_SSH_AUTHENTICATION_FAILED",
            Numbers::Seconds(60),
        )
    },
    Preset {
        within: Some(Duration::from_hours(72)),
        ..preset(
            "aloe-monitoring",
            "Aloe: the steps of its monitoring of remote jobs",
            Numbers::Steps(&[(1, 1), (5, 10), (10, 60), (100, 180), (100, 300), (0, 600)]),
        )
    },
    preset(
        "aloe-transfer",
        "Aloe: the steps of its transfers",
        Numbers::Steps(&[(3, 5), (10, 10), (100, 30), (0, 60)]),
    ),
    Preset {
        attempts: Some(6),
        ..preset(
            "agave",
            "Agave: IMMEDIATE, its default, of 5 tries",
            Numbers::Immediate,
        )
    },
];

impl Preset {
    /// Returns the preset with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Returns the policy.
    pub fn policy(&self) -> RetryPolicy {
        let seconds = Duration::from_secs;
        let policy = match self.delays {
            Numbers::Immediate => RetryPolicy::immediate(),
            Numbers::Seconds(delay) => RetryPolicy::constant(seconds(delay)),
            Numbers::Doubled(first, longest, anchor) => {
                let longest = longest.map_or(super::LONGEST, seconds);
                RetryPolicy::exponential(seconds(first), 2.0, longest).anchor(anchor)
            }
            Numbers::Steps(steps) => {
                let step = |(times, delay): &(u32, u64)| Step {
                    times: if *times == 0 { u32::MAX } else { *times },
                    delay: seconds(*delay),
                };
                RetryPolicy::with(Delays::Stepwise(steps.iter().map(step).collect()))
            }
        };
        policy
            .attempts(self.attempts.unwrap_or(u32::MAX))
            .within(self.within.unwrap_or(Duration::MAX))
    }
}
