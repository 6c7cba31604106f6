//! A web server of one file that leaves its responses unfinished.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What a [`RawServer`] sends of the range that it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// All of it.
    All,
    /// All of it, without saying how long it is, and these bytes behind it.
    More(&'static [u8]),
    /// The first byte. Then the connection breaks off.
    ByteAndBreak,
    /// The first byte. Then nothing, for as long as the client stays.
    ByteAndHold,
}

/// A web server on a free port of 127.0.0.1 that has the same file at each path, and gives parts of
/// it. The first byte alone, by which clients see what a file is, is sent in full. Stops when it is
/// dropped.
#[derive(Debug)]
pub struct RawServer {
    url: String,
    held: Held,
    _connections: JoinSet<()>,
}

/// The paths of responses that clients still wait for.
type Held = Arc<Mutex<Vec<String>>>;

impl RawServer {
    /// Starts a server of this file.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start(content: impl Into<Vec<u8>>, sent: Sent) -> std::io::Result<Self> {
        let content: Vec<u8> = content.into();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let (content, held) = (Arc::<[u8]>::from(content), Held::default());
        let mut accepting = JoinSet::new();
        accepting.spawn({
            let held = Arc::clone(&held);
            async move {
                let mut connections = JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    let (content, held) = (Arc::clone(&content), Arc::clone(&held));
                    connections.spawn(async move {
                        // A client may leave at any time.
                        let _ = respond(client, &content, sent, &held).await;
                    });
                }
            }
        });
        Ok(Self {
            url,
            held,
            _connections: accepting,
        })
    }

    /// Returns the URL of the server, without a path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the paths of the responses that are unfinished, and whose clients still wait, in
    /// order.
    pub fn held(&self) -> Vec<String> {
        let held = self.held.lock();
        let mut paths = held.clone();
        paths.sort();
        paths
    }
}

async fn respond(
    mut client: TcpStream,
    content: &[u8],
    sent: Sent,
    held: &Held,
) -> std::io::Result<()> {
    let request = read_request(&mut client).await?;
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let (from, to) = range_of(&request).unwrap_or((0, content.len() - 1));
    let to = to.min(content.len() - 1);
    let part = &content[from.min(to)..=to];
    let sent = if part.len() == 1 { Sent::All } else { sent };
    let (says_length, body, behind): (_, _, &[u8]) = match sent {
        Sent::All => (true, part, b""),
        Sent::More(behind) => (false, part, behind),
        Sent::ByteAndBreak | Sent::ByteAndHold => (true, &part[..1], b""),
    };
    let size = content.len();
    let length = if says_length {
        format!("content-length: {}\r\n", part.len())
    } else {
        String::new()
    };
    let fields = format!(
        "HTTP/1.1 206 Partial Content\r\nconnection: close\r\netag: \"one\"\r\ncontent-range: bytes {from}-{to}/{size}\r\n{length}\r\n"
    );
    let response = [fields.as_bytes(), body, behind].concat();
    client.write_all(&response).await?;
    if sent == Sent::ByteAndHold {
        let change = |act: &dyn Fn(&mut Vec<String>)| {
            act(&mut held.lock());
        };
        change(&|held| held.push(path.clone()));
        let _ = client.read(&mut [0]).await;
        change(&|held| {
            let at = held.iter().position(|other| *other == path);
            at.map(|at| held.remove(at));
        });
    }
    Ok(())
}

async fn read_request(client: &mut TcpStream) -> std::io::Result<String> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(client.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&request).to_ascii_lowercase())
}

/// Returns the first and the last byte that a request asks for.
fn range_of(request: &str) -> Option<(usize, usize)> {
    let range = request.split("range: bytes=").nth(1)?.lines().next()?;
    let (from, to) = range.split_once('-')?;
    Some((from.parse().ok()?, to.trim().parse().ok()?))
}
