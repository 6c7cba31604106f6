//! Policies with names: those of the systems whose promises Batchwright keeps, to the number.
//!
//! Aloe's policies count *tries*, which are the delays here, not the attempts. Three of their
//! defects are not copied: a step that runs once too often, a time limit of three hours that is
//! written as 125 days, and a time that begins again with the process.

use super::RetryPolicy;

/// A policy with a name.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// The name, as in settings and requests.
    pub name: &'static str,
    /// Where the policy is from, for the documentation.
    pub origin: &'static str,
    /// The policy as text.
    policy: &'static str,
}

/// Each preset: its name and its policy, and below them where it is from.
macro_rules! presets {
    ($($name:literal: $policy:literal $origin:literal)+) => {
        /// All presets.
        pub const PRESETS: &[Preset] =
            &[$(Preset { name: $name, origin: $origin, policy: $policy }),+];
    };
}

presets! {
    "caf": "immediate,attempts=11,within=none"
        "[CAF](../from-caf.md): the message comes again at once, up to 10 times"
    "jobweaver": "exponential,first=10s,factor=2,longest=5m,attempts=10,within=none"
        "JobWeaver: min(5·2ⁿ, 300) seconds; it takes the number from the request"
    "quantumleap": "exponential,first=20s,factor=2,longest=30d,anchor=start,attempts=10,within=none"
        "QuantumLeap: 20 seconds, doubled, from the first attempt on; it takes the number from a setting"
    "aloe-constant": "constant,delay=1m,attempts=none,within=2d"
        "Aloe: CONSTANT_BACKOFF with its defaults"
    "aloe-stepwise": "stepwise,steps=2x10s/10x20s/10x1m/100x2m/5m,attempts=none,within=2d"
        "Aloe: STEPWISE_BACKOFF with its defaults"
    "system-not-available": "constant,delay=1m,attempts=none,within=2d"
        "Aloe: SYSTEM_NOT_AVAILABLE"
    "application-not-available": "constant,delay=1m,attempts=none,within=2d"
        "Aloe: APPLICATION_NOT_AVAILABLE"
    "quota-exceeded": "constant,delay=1m,attempts=none,within=2d"
        "Aloe: QUOTA_EXCEEDED"
    "service-connection-failure": "stepwise,steps=5x1m/30x2m,attempts=none,within=2d"
        "Aloe: SERVICE_CONNECTION_FAILURE"
    "ssh-connection-failure": "stepwise,steps=5x1m/5x2m/3x5m,attempts=none,within=2d"
        "Aloe: SSH_CONNECTION_FAILURE"
    "ssh-connection-timeout": "stepwise,steps=5x1m/5x2m/10x5m,attempts=none,within=2d"
        "Aloe: SSH_CONNECTION_TIMEOUT"
    "ssh-authentication-failed": "constant,delay=1m,attempts=16,within=3h"
        "Aloe: SSH_AUTHENTICATION_FAILED"
    "first-ssh-authentication-failed": "constant,delay=1m,attempts=4,within=3h"
        "Aloe: FIRST_SSH_AUTHENTICATION_FAILED"
    "aloe-monitoring": "stepwise,steps=1s/5x10s/10x1m/100x3m/100x5m/10m,attempts=none,within=3d"
        "Aloe: the steps of its monitoring of remote jobs"
    "aloe-transfer": "stepwise,steps=3x5s/10x10s/100x30s/1m,attempts=none,within=none"
        "Aloe: the steps of its transfers"
    "agave": "immediate,attempts=6,within=none"
        "Agave: IMMEDIATE, its default, of 5 tries"
}

impl Preset {
    /// Returns the preset with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Returns the policy.
    pub fn policy(&self) -> RetryPolicy {
        // A test reads the text of each.
        self.policy.parse().unwrap_or_default()
    }
}
