//! Items that `submit` reads: a list in the definition if there are few, and otherwise a source
//! that it uploads.
//!
//! What must stay true: the memory is that of one piece, however much is read; what is interrupted
//! goes on where the service has stored the last byte.

use std::io::{self, IsTerminal as _, Read};
use std::time::Duration;

use anyhow::{Context as _, bail};
use batchwright::client::{Client, ClientError};
use bytes::Bytes;
use contract::BatchTask;
use contract::rest::SourceCommit;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep};

use crate::print::{remark, rewrite_line};
use crate::text::{binary_size as size, duration};

/// The bytes that are sent at a time. They are also the most that stay in the definition.
const PIECE: usize = BatchTask::MAX_DEFINITION;
/// How long an upload goes on trying while the service is away, and the longest pause between two
/// attempts.
const PATIENCE: Duration = Duration::from_mins(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Where items are read from.
pub type Input = Box<dyn Read + Send>;

/// What was read of the items.
pub enum Items {
    /// All of them.
    Few(Vec<u8>),
    /// The first of them, and where the others are.
    Many(Vec<u8>, Input),
}

/// Reads items as far as a definition may have them.
pub async fn read(input: Input) -> io::Result<Items> {
    let (bytes, input) = piece(input).await?;
    Ok(if bytes.len() < PIECE {
        Items::Few(bytes)
    } else {
        Items::Many(bytes, input)
    })
}

/// Uploads items, of which the first are read already. Returns the id of the source.
pub async fn upload(client: &Client, first: Vec<u8>, input: Input) -> anyhow::Result<String> {
    let created = client.create_source().await;
    let id = created
        .context("the items are too many for a definition, and cannot be uploaded")?
        .id;
    let uploaded = send_all(client, &id, first, input).await;
    if uploaded.is_err() {
        // One that is not deleted goes by itself.
        let _ = client.delete_source(&id).await;
    }
    uploaded.map(|()| id)
}

/// Returns the definition of a batch of the items of a source.
pub fn definition(id: &str, format: &str) -> String {
    json!({ "files": [format!("upload://{id}")], "format": format, "values": true }).to_string()
}

async fn send_all(
    client: &Client,
    id: &str,
    first: Vec<u8>,
    mut input: Input,
) -> anyhow::Result<()> {
    let (began, shows) = (Instant::now(), io::stderr().is_terminal());
    let (mut next, mut sent, mut hash) = (first, 0, Sha256::new());
    while !next.is_empty() {
        hash.update(&next);
        let is_last = next.len() < PIECE;
        sent = send(client, id, sent, next.into()).await?;
        if shows {
            rewrite_line(&format!("uploading: {}", size(sent)));
        }
        next = Vec::new();
        if !is_last {
            (next, input) = piece(input).await.context("cannot read the items")?;
        }
    }
    let commit = SourceCommit {
        bytes: sent,
        sha256: format!("{:x}", hash.finalize()),
    };
    let mut trouble = Trouble::default();
    while let Err(error) = client.commit_source(id, &commit).await {
        trouble.wait(error, sent).await?;
    }
    if shows {
        rewrite_line("");
    }
    let took = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
    remark!("batchwright: uploaded {} in {}", size(sent), duration(took));
    Ok(())
}

/// Sends a piece that begins at this position. Returns where the next one begins.
async fn send(client: &Client, id: &str, begin: u64, piece: Bytes) -> anyhow::Result<u64> {
    let end = begin + piece.len() as u64;
    let mut trouble = Trouble::default();
    let mut at = begin;
    while at < end {
        let rest = piece.slice(usize::try_from(at - begin)?..);
        let added = client.append_to_source(id, at, rest).await;
        match added {
            Ok(source) => at = source.bytes,
            Err(error) => {
                trouble.wait(error, at).await?;
                at = stored(client, id, at, &mut trouble).await?;
            }
        }
        if !(begin..=end).contains(&at) {
            bail!("the source {id} has {at} bytes, although at most {end} were sent");
        }
    }
    Ok(end)
}

/// Returns how many bytes the service has stored.
async fn stored(
    client: &Client,
    id: &str,
    sent: u64,
    trouble: &mut Trouble,
) -> anyhow::Result<u64> {
    loop {
        match client.source(id).await {
            Ok(source) => return Ok(source.bytes),
            Err(error) => trouble.wait(error, sent).await?,
        }
    }
}

/// What is in the way of an upload.
#[derive(Default)]
struct Trouble {
    since: Option<Instant>,
    pause: Duration,
}

impl Trouble {
    /// Waits before the next attempt.
    ///
    /// # Errors
    /// Returns the error if another attempt would not help, or if it has lasted too long.
    async fn wait(&mut self, error: ClientError, sent: u64) -> anyhow::Result<()> {
        let may_help = match &error {
            ClientError::Unreachable { .. } => true,
            ClientError::Refused { status, .. } => matches!(status, 408 | 429 | 500..=504),
            ClientError::TooLarge { .. } | ClientError::InvalidResponse { .. } => false,
        };
        let since = *self.since.get_or_insert_with(Instant::now);
        if !may_help || since.elapsed() > PATIENCE {
            if io::stderr().is_terminal() {
                rewrite_line("");
            }
            return Err(error)
                .with_context(|| format!("the upload has ended after {}", size(sent)));
        }
        if self.pause.is_zero() {
            if io::stderr().is_terminal() {
                rewrite_line("");
            }
            remark!(
                "batchwright: interrupted after {}; trying again: {error}",
                size(sent)
            );
        }
        self.pause = (self.pause * 2).clamp(Duration::from_millis(500), LONGEST_PAUSE);
        sleep(self.pause).await;
        Ok(())
    }
}

/// Reads a piece. Returns less than one at the end only.
async fn piece(mut input: Input) -> io::Result<(Vec<u8>, Input)> {
    // Reading blocks.
    let read = move || {
        let mut bytes = Vec::new();
        (&mut input).take(PIECE as u64).read_to_end(&mut bytes)?;
        Ok((bytes, input))
    };
    tokio::task::spawn_blocking(read).await?
}
