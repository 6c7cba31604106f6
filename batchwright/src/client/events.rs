//! Reads the event streams of partitions, which say what happens to all jobs.

use contract::rest::{EventReset, JobEvent};
use framework::http::{HttpResponse, Method};
use tokio::time::timeout;

use super::transport::Call;
use super::{Client, ClientError, SILENCE_LIMIT, encode};

/// What a stream of events says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// Something has happened to a job.
    Event(Box<JobEvent>),
    /// Events are missing before the next one.
    Reset(EventReset),
}

impl Client {
    /// Subscribes to the events of the partition, or `of_all`. Goes on behind the event with the id
    /// `last`, or else begins at `since`.
    pub async fn events(
        &self,
        of_all: bool,
        since: Option<&str>,
        last: Option<&str>,
    ) -> Result<JobEvents, ClientError> {
        let query = match (since, last) {
            (Some(since), None) => format!("?since={}", encode(since)),
            _ => String::new(),
        };
        let url = if of_all {
            format!("{}/events{query}", self.base)
        } else {
            let partition = encode(&self.partition);
            format!("{}/partitions/{partition}/events{query}", self.base)
        };
        let mut call = Call::new(Method::GET, &url);
        if let Some(last) = last {
            call = call.header("last-event-id", last);
        }
        Ok(JobEvents {
            response: self.begin(call).await?,
            read: Vec::new(),
            last: last.map(str::to_owned),
        })
    }
}

/// A stream of what happens to jobs.
#[derive(Debug)]
pub struct JobEvents {
    response: HttpResponse,
    read: Vec<u8>,
    last: Option<String>,
}

impl JobEvents {
    /// Returns the id behind which a client goes on that comes back.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Returns what has happened next, or `None` if the stream ended for any reason, or is silent.
    pub async fn next(&mut self) -> Option<Happened> {
        let mut searched = 0;
        loop {
            let end = self.read[searched..]
                .windows(2)
                .position(|it| it == b"\n\n");
            if let Some(end) = end {
                let event: Vec<u8> = self.read.drain(..searched + end + 2).collect();
                searched = 0;
                if let Some(happened) = self.take(&String::from_utf8_lossy(&event)) {
                    return Some(happened);
                }
                continue;
            }
            searched = self.read.len().saturating_sub(1);
            let chunk = timeout(SILENCE_LIMIT, self.response.chunk()).await;
            self.read.extend_from_slice(&chunk.ok()?.ok()??);
        }
    }

    /// Takes note of the id of an event. Returns its content, if this version knows it.
    fn take(&mut self, event: &str) -> Option<Happened> {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
        if let Some(id) = field("id:") {
            self.last = Some(id.trim().to_owned());
        }
        let data = field("data:")?;
        if field("event:")?.trim() == "reset" {
            serde_json::from_str(data).map(Happened::Reset).ok()
        } else {
            let event = serde_json::from_str(data).ok()?;
            Some(Happened::Event(Box::new(event)))
        }
    }
}
