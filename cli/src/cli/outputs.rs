//! `batchwright outputs JOB`: the kept outputs of a job as lines of JSON, across restarts of the
//! job service.
//!
//! What must stay true: each line is written once and whole, whatever happens to the connection.

use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use batchwright::client::{Client, ClientError};
use clap::Args;
use contract::rest::{ExportLine, ExportManifest};
use framework::log::printable;
use serde::Deserialize;
use tempfile::NamedTempFile;
use tokio::time::Instant;

use super::connect::ServiceArgs;
use crate::print::{Unwritten, remark, say};
use crate::text::numbered;

/// How often and how long the command tries to go on after the connection broke.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often `--follow` looks for further outputs.
const LOOK: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_mins(10);

#[derive(Debug, Args)]
pub struct OutputsArgs {
    /// Id of the job.
    job: String,
    /// Only results (`done`) or only failures (`failed`).
    #[arg(long)]
    status: Option<String>,
    /// Offset of the first output to print, to go on where an earlier command stopped.
    #[arg(long, default_value_t = 0)]
    offset: u64,
    /// Maximum number of outputs to print; without it, all.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Print further outputs as they are kept, until the job has ended.
    #[arg(long, conflicts_with = "limit")]
    follow: bool,
    /// Let the service write the outputs of a job that has ended to a folder in a place that the
    /// operator has named (`--export-store`), instead of printing them: parts, and `manifest.json`.
    #[arg(long, value_name = "STORE/PATH", value_parser = destination, conflicts_with_all = ["status", "offset", "limit", "follow"])]
    export: Option<(String, String)>,
    #[command(flatten)]
    pub service: ServiceArgs,
}

/// Which outputs are wanted.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    pub status: Option<String>,
    pub offset: u64,
    pub limit: Option<u64>,
}

/// Where the outputs of a new job go.
pub enum Destination {
    /// The job service keeps them.
    Service,
    Stdout,
    /// A file that gets its name when it is complete.
    File(NamedTempFile, PathBuf),
}

impl Destination {
    /// Returns the destination that the flag `--outputs` names.
    pub fn of(name: &Path) -> anyhow::Result<Self> {
        if name.as_os_str() == "keep" {
            return Ok(Self::Service);
        }
        if name.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        ensure!(
            !name.exists() || name.is_file(),
            "{} is not a file; `-` writes the outputs to standard output",
            name.display()
        );
        let folder = name
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let file = tempfile::Builder::new()
            .prefix(".outputs-")
            // As for any new file: the mask of the process takes rights away.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder.unwrap_or(Path::new(".")));
        let file = file.with_context(|| format!("cannot write {}", name.display()))?;
        Ok(Self::File(file, name.to_owned()))
    }

    /// Writes the outputs of a job. Returns whether standard output is free for other things.
    pub async fn write(self, client: &Client, job: &str) -> anyhow::Result<bool> {
        let wanted = &mut Wanted::default();
        match self {
            Self::Service => Ok(true),
            Self::Stdout => {
                copy(client, job, wanted, &mut io::stdout(), PAUSE).await?;
                Ok(false)
            }
            Self::File(file, name) => {
                let mut buffered = BufWriter::new(file);
                copy(client, job, wanted, &mut buffered, PAUSE).await?;
                let persisted = buffered.into_inner()?;
                persisted.as_file().sync_all()?;
                persisted
                    .persist(&name)
                    .with_context(|| format!("cannot write {}", name.display()))?;
                Ok(true)
            }
        }
    }
}

/// What is read of a line.
#[derive(Deserialize)]
struct Line {
    offset: u64,
}

/// Prints outputs.
pub async fn outputs(args: OutputsArgs) -> anyhow::Result<ExitCode> {
    let mut wanted = Wanted {
        status: args.status,
        offset: args.offset,
        limit: args.limit,
    };
    let client = args.service.client()?;
    // A service that is not there is no interruption.
    client.get(&args.job).await?;
    if let Some((store, path)) = args.export {
        export(&client, &args.job, &store, &path).await?;
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        // Asked first: what is kept at the end of the job is printed, then.
        let is_last = !args.follow || has_ended(&client, &args.job).await?;
        copy(&client, &args.job, &mut wanted, &mut io::stdout(), PAUSE).await?;
        if is_last {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns whether a job has ended. A service that is away does not say so.
async fn has_ended(client: &Client, job: &str) -> Result<bool, ClientError> {
    match client.get(job).await {
        Ok(job) => Ok(job.status.is_finished()),
        Err(error) if error.is_transient() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lets the service export the outputs of a job, across its restarts.
async fn export(client: &Client, job: &str, store: &str, path: &str) -> anyhow::Result<()> {
    let (mut patience, mut parts) = (Patience::new(PAUSE), 0);
    loop {
        let before = parts;
        match export_some(client, job, (store, path), &mut parts).await {
            Ok(manifest) => {
                let outputs = numbered(manifest.lines, "output");
                let parts = numbered(manifest.parts.len() as u64, "part");
                let bytes = numbered(manifest.bytes, "byte");
                say!("{outputs} ({bytes}) in {parts}, listed in {store}/{path}/manifest.json");
                return Ok(());
            }
            Err(error) => {
                if parts > before {
                    patience = Patience::new(PAUSE);
                }
                patience.wait(error).await?;
            }
        }
    }
}

/// Reads what an export tells until it is complete. `parts` is the number of parts that are told
/// already.
async fn export_some(
    client: &Client,
    job: &str,
    (store, path): (&str, &str),
    parts: &mut usize,
) -> anyhow::Result<ExportManifest> {
    let mut lines = client.export(job, store, path).await?;
    let mut seen = 0;
    while let Some(line) = lines.next().await? {
        match serde_json::from_slice(&line)? {
            ExportLine::Progress(_) => {}
            ExportLine::Part(part) => {
                seen += 1;
                if seen > *parts {
                    *parts = seen;
                    let outputs = numbered(part.lines, "output");
                    let bytes = numbered(part.bytes, "byte");
                    remark!("{}: {outputs}, {bytes}", part.name);
                }
            }
            ExportLine::Manifest(manifest) => return Ok(manifest),
            ExportLine::Error(error) => {
                bail!("{error} The export has stopped; the same command continues it.")
            }
        }
    }
    bail!("the response to the export has no end; the same command continues it")
}

fn destination(text: &str) -> Result<(String, String), String> {
    let parts = text
        .split_once('/')
        .map(|(store, path)| (store.to_owned(), path.to_owned()));
    parts.ok_or_else(|| format!("{text:?} is not STORE/PATH, e.g. archive/2026/words"))
}

/// Tries again after errors that may go away, with growing pauses, for [`PATIENCE`].
struct Patience {
    pause: Duration,
    away_since: Option<Instant>,
}

impl Patience {
    const fn new(pause: Duration) -> Self {
        Self {
            pause,
            away_since: None,
        }
    }

    /// Waits before the next attempt. Returns the error if it is final.
    async fn wait(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        let since = *self.away_since.get_or_insert_with(Instant::now);
        let is_transient = error
            .downcast_ref::<ClientError>()
            .is_some_and(ClientError::is_transient);
        if !is_transient || since.elapsed() >= PATIENCE {
            return Err(error);
        }
        remark!("{error}; trying again in {:?}", self.pause);
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// Writes the outputs of a job. If the connection breaks, goes on after the last line that was
/// written.
pub async fn copy(
    client: &Client,
    job: &str,
    wanted: &mut Wanted,
    to: &mut impl Write,
    first_pause: Duration,
) -> anyhow::Result<()> {
    let mut patience = Patience::new(first_pause);
    loop {
        let before = wanted.offset;
        let error = match copy_some(client, job, wanted, to).await {
            Ok(()) => return Ok(to.flush().map_err(Unwritten::from)?),
            Err(error) => error,
        };
        if wanted.offset > before {
            patience = Patience::new(first_pause);
        }
        patience.wait(error).await?;
    }
}

async fn copy_some(
    client: &Client,
    job: &str,
    wanted: &mut Wanted,
    to: &mut impl Write,
) -> anyhow::Result<()> {
    if wanted.limit == Some(0) {
        return Ok(());
    }
    let mut query = vec![("offset", wanted.offset.to_string())];
    query.extend(wanted.status.clone().map(|status| ("status", status)));
    query.extend(wanted.limit.map(|limit| ("limit", limit.to_string())));
    let mut lines = client.outputs(job, &query).await?;
    while let Some(line) = lines.next().await? {
        let Line { offset } = serde_json::from_slice(&line)?;
        let text = String::from_utf8_lossy(&line);
        let written = to.write_all(printable(&text).as_bytes());
        written.map_err(Unwritten::from)?;
        wanted.offset = offset + 1;
        wanted.limit = wanted.limit.map(|limit| limit.saturating_sub(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use harness::in_time;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const OK: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ncontent-length: 1000\r\n\r\n";

    fn line(offset: u64) -> String {
        format!("{{\"offset\":{offset},\"task\":\"\u{202e}{offset}\"}}\n")
    }

    #[tokio::test]
    async fn every_line_is_written_once_although_the_connection_breaks_within_a_line() {
        let whole = line(5);
        let last = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{whole}",
            whole.len()
        );
        let responses = [
            (
                format!("{OK}{}{}{}", line(0), line(3), &line(4)[..7]),
                "offset=0&limit=4 ",
            ),
            (
                "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
                "offset=4&limit=2 ",
            ),
            (format!("{OK}{}", line(4)), "offset=4&limit=2 "),
            (last, "offset=5&limit=1 "),
        ];
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("http://{}", server.local_addr().unwrap()), "p");
        let serving = async {
            for (response, asked) in &responses {
                let (mut socket, _) = server.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let length = socket.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                assert!(request.contains(asked), "{request}");
                socket.write_all(response.as_bytes()).await.unwrap();
            }
        };
        let mut wanted = Wanted {
            limit: Some(4),
            ..Wanted::default()
        };
        let mut written = Vec::new();
        let copied = copy(
            &client,
            "j",
            &mut wanted,
            &mut written,
            Duration::from_millis(1),
        );
        let (copied, ()) = in_time("the outputs", async { tokio::join!(copied, serving) }).await;
        copied.unwrap();
        let written = String::from_utf8(written).unwrap();
        let lines = [0, 3, 4, 5].map(line).concat();
        assert_eq!(written, lines.replace('\u{202e}', "\\u202e"));
    }
}
