//! `batchwright take PIPE` and `batchwright put PIPE`: the messages of a pipe as lines of JSON.
//!
//! Where there is a broker that programs share, they use it directly; otherwise they ask the job
//! service of the embedded system.
//!
//! What must stay true: a message that is taken is acknowledged only when its line is written and
//! flushed, in a file also safe.

mod destination;
mod transport;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use contract::rest::MAX_BODY_BYTES;
use contract::{MAX_PIPE_MESSAGES, PipeMessage, TaskMessage};
use uuid::Uuid;

use self::destination::Destination;
pub use self::transport::PipeServerArgs;
use crate::print::say;
use crate::text::numbered;

#[derive(Debug, Args)]
pub struct TakeArgs {
    /// Name of the pipe.
    pipe: String,
    /// File to whose end the messages are written, one on each line; without it, or with `-`,
    /// standard output.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Number of messages to take; without it, all that wait.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), value_name = "MESSAGES")]
    count: Option<u64>,
    /// Seconds to wait for a further message when the pipe is empty.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    wait: u32,
    /// Wait for further messages until the command is stopped.
    #[arg(long, short, conflicts_with = "wait")]
    follow: bool,
    /// Take messages even from a pipe that the system itself reads; what is taken is lost to the
    /// system.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: PipeServerArgs,
}

#[derive(Debug, Args)]
pub struct PutArgs {
    /// Name of the pipe.
    pipe: String,
    /// File with one message on each line, as `take` prints them; without it, or with `-`, standard
    /// input.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Type of the task data: each line is the task data alone, and becomes a message that belongs
    /// to no job.
    #[arg(long, value_name = "CLASSIFIER")]
    classifier: Option<String>,
    /// Version of that type.
    #[arg(long, default_value_t = 1, requires = "classifier", value_parser = clap::value_parser!(i32).range(1..), value_name = "VERSION")]
    api_version: i32,
    #[command(flatten)]
    server: PipeServerArgs,
}

/// Prints the messages of a pipe and acknowledges them.
pub async fn take(args: TakeArgs) -> anyhow::Result<ExitCode> {
    // What cannot be written is not taken.
    let mut destination = Destination::open(args.file.as_deref())?;
    let mut taking = args.server.take(&args.pipe, args.force).await?;
    let mut written = 0;
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let limit =
            usize::try_from(left).map_or(MAX_PIPE_MESSAGES, |left| left.min(MAX_PIPE_MESSAGES));
        let messages = taking
            .next(limit, Duration::from_secs(args.wait.into()), args.follow)
            .await?;
        if messages.is_empty() && !args.follow {
            break;
        }
        if let Err(error) = lines_of(&messages).and_then(|lines| destination.write(&lines)) {
            taking.give_back().await;
            return Err(error);
        }
        let number = u64::try_from(messages.len())?;
        (left, written) = (left - number, written + number);
        taking.acknowledge();
    }
    taking.end().await?;
    destination.end(written)?;
    Ok(ExitCode::SUCCESS)
}

fn lines_of(messages: &[PipeMessage]) -> anyhow::Result<String> {
    let mut lines = String::new();
    for message in messages {
        lines.push_str(&serde_json::to_string(message)?);
        lines.push('\n');
    }
    Ok(lines)
}

/// Sends messages to a pipe, and says how many are confirmed.
pub async fn put(args: PutArgs) -> anyhow::Result<ExitCode> {
    let mut lines = Lines::open(&args)?;
    let mut putting = args.server.put(&args.pipe).await?;
    let mut confirmed = 0;
    let sent = async {
        loop {
            let messages = lines.next_messages()?;
            if messages.is_empty() {
                return Ok(());
            }
            let number = messages.len() as u64;
            putting.send(messages).await?;
            confirmed += number;
        }
    };
    let sent: anyhow::Result<()> = sent.await;
    let messages = numbered(confirmed, "message");
    sent.with_context(|| format!("{messages} confirmed before this"))?;
    say!("{messages} confirmed");
    Ok(ExitCode::SUCCESS)
}

/// The lines of a file, as messages for a pipe.
struct Lines {
    input: Box<dyn BufRead>,
    /// The number of the line that was read last.
    number: u64,
    pipe: String,
    classifier: Option<String>,
    api_version: i32,
}

impl Lines {
    fn open(args: &PutArgs) -> anyhow::Result<Self> {
        let file = args.file.as_ref().filter(|file| file.as_os_str() != "-");
        let input: Box<dyn BufRead> = match file {
            Some(file) => {
                let opened = File::open(file);
                let opened = opened.with_context(|| format!("cannot read {}", file.display()))?;
                Box::new(BufReader::new(opened))
            }
            None => Box::new(BufReader::new(io::stdin())),
        };
        Ok(Self {
            input,
            number: 0,
            pipe: args.pipe.clone(),
            classifier: args.classifier.clone(),
            api_version: args.api_version,
        })
    }

    /// Returns the next messages, at most what one request may have. Each is checked.
    fn next_messages(&mut self) -> anyhow::Result<Vec<PipeMessage>> {
        let (mut messages, mut bytes) = (Vec::new(), 0);
        // A message has at most as many bytes as its line and an envelope; two further lines always
        // fit into a request.
        while messages.len() < MAX_PIPE_MESSAGES && bytes < MAX_BODY_BYTES / 4 {
            let Some(line) = self.next_line()? else { break };
            bytes += line.len();
            if !line.trim_ascii().is_empty() {
                let number = self.number;
                messages.push(
                    self.message(&line)
                        .with_context(|| format!("line {number}"))?,
                );
            }
        }
        Ok(messages)
    }

    fn next_line(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let (most, mut line) = (MAX_BODY_BYTES / 2, Vec::new());
        let limit = u64::try_from(most)? + 1;
        self.number += 1;
        let read = (&mut self.input).take(limit).read_until(b'\n', &mut line);
        if read.context("cannot read the messages")? == 0 {
            return Ok(None);
        }
        if line.len() > most {
            bail!("line {} has more than {most} bytes", self.number);
        }
        Ok(Some(line))
    }

    fn message(&self, line: &[u8]) -> anyhow::Result<PipeMessage> {
        let message = match &self.classifier {
            None => serde_json::from_slice(line).context(
                "it is not a message as `take` prints it; for task data alone, use --classifier",
            )?,
            Some(classifier) => self.request(classifier, line)?,
        };
        message.clone().into_task_message(&self.pipe)?;
        Ok(message)
    }

    /// Returns a message with this task data, which belongs to no job.
    fn request(&self, classifier: &str, data: &[u8]) -> anyhow::Result<PipeMessage> {
        let _: serde::de::IgnoredAny = serde_json::from_slice(data).context("it is not JSON")?;
        let envelope = serde_json::json!({
            "version": 3, "taskId": format!("put-{}", Uuid::new_v4().simple()), "taskClassifier": classifier,
            "taskApiVersion": self.api_version, "taskStatus": "NEW_TASK", "context": {}, "to": self.pipe,
        });
        let body = TaskMessage {
            task_data: Some(data.trim_ascii().to_vec()),
            ..TaskMessage::decode(envelope.to_string().as_bytes())?
        };
        Ok(PipeMessage::of_body(
            std::collections::BTreeMap::new(),
            &body.encode(),
        ))
    }
}
