//! The processor time and the memory of a measurement, apart for this process, the broker and the
//! database.
//!
//! Which process serves a URL is known where it listens on this machine and the operating system
//! tells. It counts with all its children, also those that have ended meanwhile, because PostgreSQL
//! has a process for each connection.

use std::collections::HashMap;

use procfs::net::{TcpState, tcp, tcp6};
use procfs::process::{FDTarget, Process, all_processes};
use reqwest::Url;
use serde::Serialize;

/// The processor time for an item, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CpuPerItem {
    /// Of this process.
    pub ours: f64,
    pub broker: Share,
    pub database: Share,
}

/// The part of a server.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Share {
    Used(f64),
    /// `unknown`; `ours` where this process does the work of the server itself; `none` where there
    /// is no such server.
    Told(&'static str),
}

impl Share {
    const UNKNOWN: Self = Self::Told("unknown");
    const OURS: Self = Self::Told("ours");
    pub const NONE: Self = Self::Told("none");

    /// Returns the microseconds, or what is told of them.
    pub fn text(self) -> String {
        match self {
            Self::Used(micros) => format!("{micros:.1}"),
            Self::Told(text) => text.to_owned(),
        }
    }
}

/// Measures from its creation on.
#[derive(Debug)]
pub struct Meter {
    broker: Server,
    database: Server,
    began: [Option<u64>; 3],
}

#[derive(Debug, Clone, Copy)]
enum Server {
    InThisProcess,
    Elsewhere,
    Process(i32),
}

impl Meter {
    /// Begins to measure. Without a URL, this process is the server.
    pub fn begin(broker: Option<&str>, database: Option<&str>) -> Self {
        let database = database.filter(|url| !url.starts_with("sqlite:"));
        let mut meter = Self {
            broker: Server::of(broker, 5672),
            database: Server::of(database, 5432),
            began: [None; 3],
        };
        meter.began = meter.read();
        meter
    }

    /// Returns what was used since the beginning, for each of so many items.
    pub fn per_item(&self, items: u64) -> CpuPerItem {
        let ended = self.read();
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
        let micros = |at: usize| {
            let ticks = ended[at]?.saturating_sub(self.began[at]?) as f64;
            let seconds = ticks / procfs::ticks_per_second() as f64;
            Some(seconds * 1e6 / items.max(1) as f64)
        };
        let share = |server, at| match server {
            Server::InThisProcess => Share::OURS,
            _ => micros(at).map_or(Share::UNKNOWN, Share::Used),
        };
        CpuPerItem {
            ours: micros(0).unwrap_or(0.0),
            broker: share(self.broker, 1),
            database: share(self.database, 2),
        }
    }

    /// Returns the processor times of this process, the broker and the database so far, in ticks.
    fn read(&self) -> [Option<u64>; 3] {
        let ours = Process::myself().and_then(|process| process.stat());
        let ours = ours.ok().map(|stat| stat.utime + stat.stime);
        let tree = Tree::read();
        [ours, self.broker.ticks(&tree), self.database.ticks(&tree)]
    }
}

impl Server {
    fn of(url: Option<&str>, default_port: u16) -> Self {
        let Some(url) = url else {
            return Self::InThisProcess;
        };
        local_port(url, default_port)
            .and_then(listener)
            .map_or(Self::Elsewhere, Self::Process)
    }

    fn ticks(self, tree: &Tree) -> Option<u64> {
        match self {
            Self::Process(id) => tree.ticks(id),
            Self::InThisProcess | Self::Elsewhere => None,
        }
    }
}

/// Returns the port of a URL of this machine.
fn local_port(url: &str, default: u16) -> Option<u16> {
    let url = Url::parse(url).ok()?;
    let host = url.host_str()?;
    let is_local = ["localhost", "[::1]"].contains(&host) || host.starts_with("127.");
    is_local.then(|| url.port().unwrap_or(default))
}

/// Returns the process that listens on a port of this machine.
fn listener(port: u16) -> Option<i32> {
    let sockets: Vec<u64> = [tcp(), tcp6()]
        .into_iter()
        .flat_map(Result::unwrap_or_default)
        .filter(|entry| entry.state == TcpState::Listen && entry.local_address.port() == port)
        .map(|entry| entry.inode)
        .collect();
    let listens = |process: &Process| {
        let Ok(open) = process.fd() else { return false };
        open.flatten()
            .any(|open| matches!(open.target, FDTarget::Socket(inode) if sockets.contains(&inode)))
    };
    let listening = all_processes().ok()?.flatten().filter(listens);
    oldest(listening.filter_map(|process| Some((process.pid, process.stat().ok()?.starttime))))
}

/// Returns the process of those that began first. A new child of PostgreSQL also has the socket,
/// until it closes it, and may have any id.
fn oldest(processes: impl IntoIterator<Item = (i32, u64)>) -> Option<i32> {
    let first = processes.into_iter().min_by_key(|(_, began)| *began)?;
    Some(first.0)
}

/// All processes with their parents and processor times.
struct Tree(HashMap<i32, (i32, u64)>);

impl Tree {
    fn read() -> Self {
        let all = all_processes().into_iter().flatten().flatten();
        let stats = all.filter_map(|process| process.stat().ok());
        let times = stats.map(|stat| {
            let ended = u64::try_from(stat.cutime + stat.cstime).unwrap_or(0);
            (stat.pid, (stat.ppid, stat.utime + stat.stime + ended))
        });
        Self(times.collect())
    }

    /// Returns the time of a process and all below it; `None` if it is gone.
    fn ticks(&self, root: i32) -> Option<u64> {
        self.0.get(&root)?;
        let below = |id: i32| {
            let mut at = id;
            // A list of parents that changes while it is read could have a circle.
            for _ in 0..64 {
                if at == root {
                    return true;
                }
                match self.0.get(&at) {
                    Some((parent, _)) => at = *parent,
                    None => return false,
                }
            }
            false
        };
        let ticks = self.0.iter().filter(|(id, _)| below(**id));
        Some(ticks.map(|(_, (_, ticks))| ticks).sum())
    }
}

/// Returns memory as text.
pub fn memory_text(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn server_on_this_machine_is_found_by_its_port_and_any_other_is_unknown() {
        let listening = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listening.local_addr().unwrap().port();
        let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        let meter = Meter::begin(Some(&url), Some("postgres://db.example/jobs"));
        let used = meter.per_item(1);
        assert!(matches!(used.broker, Share::Used(_)), "{used:?}");
        assert_eq!(used.database, Share::UNKNOWN);
        drop(listening);
        let used = Meter::begin(Some(&url), None).per_item(1);
        assert_eq!((used.broker, used.database), (Share::UNKNOWN, Share::OURS));
    }

    #[test]
    fn server_and_not_its_child_with_a_lower_id_is_what_listens() {
        assert_eq!(oldest([(9830, 1000), (21_765, 10)]), Some(21_765));
        assert_eq!(oldest([]), None);
    }

    #[test]
    fn time_of_a_server_contains_its_children_and_theirs_alone() {
        let processes = [(1, (0, 1)), (7, (1, 10)), (8, (7, 100)), (9, (8, 1000))];
        let tree = Tree(processes.into());
        assert_eq!(tree.ticks(7), Some(1110));
        assert_eq!(tree.ticks(9), Some(1000));
        assert_eq!(tree.ticks(5), None);
    }
}
