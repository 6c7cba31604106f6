//! The name of this process in texts for people: its host and its process id.

use std::sync::Arc;

use contract::FailedRun;

/// The host and the number of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessName {
    host: Option<Arc<str>>,
    number: Option<u32>,
}

impl ProcessName {
    /// Asks the operating system. Only Linux tells the name of the host without more.
    pub fn of_this_process() -> Self {
        #[cfg(target_os = "linux")]
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        #[cfg(not(target_os = "linux"))]
        let host: Option<String> = None;
        let host = host.as_deref().map(str::trim);
        Self {
            host: host.filter(|host| !host.is_empty()).map(Into::into),
            number: Some(std::process::id()),
        }
    }

    /// Returns the name of the host, if the operating system tells it.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Describes an attempt that failed in this process: its number, and when it began.
    pub fn failed_run(&self, attempt: u32, began: i64) -> FailedRun {
        FailedRun {
            attempt: Some(attempt),
            began: Some(began),
            host: self.host.as_deref().map(str::to_owned),
            process: self.number,
            next: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_named_by_its_host_and_its_number() {
        let run = ProcessName::of_this_process().failed_run(2, 7);
        assert_eq!(run.process, Some(std::process::id()));
        if cfg!(target_os = "linux") {
            assert!(run.host.is_some_and(|host| !host.contains('\n')));
        }
    }
}
