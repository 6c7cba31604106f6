//! Files at URLs: by ranges, where the server gives them, and else as a whole.
//!
//! What must stay true: each response is one of the pinned state of the file, as far as the server
//! says what state it is. A response that stops coming ends within a minute, one that comes too
//! slowly or breaks off too often fails, and no more of it is read than was asked for.

use std::io::{self, Read};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use framework::http::confined::{ConfinedClient, ConfinedError, shown};
use framework::http::{HeaderMap, HeaderValue, HttpResponse, StatusCode};
use tokio::time::{sleep, timeout};

use crate::SplitError;
use crate::files::{Pin, changed};
use crate::reading::{Flow, Reading, error_for_reader};

/// How long a response may take to begin, and how long nothing of it may come.
const SILENCE: Duration = Duration::from_secs(30);
/// How often a range is asked for again that broke off without a byte, and after which time.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(300);

/// Reads files at URLs.
#[derive(Debug, Clone)]
pub struct Web {
    client: ConfinedClient,
}

impl Web {
    pub const fn new(client: ConfinedClient) -> Self {
        Self { client }
    }

    /// Returns what a file looks like now. Asks for its first byte: not every server answers a
    /// `HEAD`.
    pub fn look(&self, url: &str, reading: &Reading) -> Result<Pin, SplitError> {
        let response = reading.wait(self.get(url, &range(0, 1)))??;
        let (status, headers) = (response.status(), response.headers());
        let tag = tag_of(headers);
        match status {
            StatusCode::PARTIAL_CONTENT => {
                let (_, size) = content_range(headers).ok_or_else(|| odd(url))?;
                Ok(Pin {
                    size,
                    tag,
                    ..Pin::default()
                })
            }
            // There is no first byte.
            StatusCode::RANGE_NOT_SATISFIABLE => Ok(Pin {
                tag,
                whole: true,
                ..Pin::default()
            }),
            _ => {
                check_status(url, status)?;
                Ok(Pin {
                    size: length(headers).unwrap_or(0),
                    tag,
                    whole: true,
                    ..Pin::default()
                })
            }
        }
    }

    /// Opens a range of a file.
    pub fn open(
        &self,
        url: &str,
        pin: &Pin,
        (from, to): (u64, u64),
        reading: &Reading,
    ) -> Result<Box<dyn Read + Send>, SplitError> {
        if from == to {
            return Ok(Box::new(io::empty()));
        }
        let mut flow = Flow::new(reading, shown(url));
        let response = flow.wait(self.range(url, pin, from, to))??;
        Ok(Box::new(Body {
            web: self.clone(),
            url: url.to_owned(),
            pin: pin.clone(),
            flow,
            response,
            piece: Bytes::new(),
            at: from,
            to: Some(to),
            tries: 0,
        }))
    }

    /// Opens a file that its server gives only as a whole.
    pub fn open_whole(
        &self,
        url: &str,
        pin: &Pin,
        reading: &Reading,
    ) -> Result<Box<dyn Read + Send>, SplitError> {
        let mut flow = Flow::new(reading, shown(url));
        let response = flow.wait(self.get(url, &HeaderMap::new()))??;
        check_status(url, response.status())?;
        let size = length(response.headers()).unwrap_or(0);
        if (size, &tag_of(response.headers())) != (pin.size, &pin.tag) {
            return Err(changed(url, "its server says so"));
        }
        Ok(Box::new(Body {
            web: self.clone(),
            url: url.to_owned(),
            pin: pin.clone(),
            flow,
            response,
            piece: Bytes::new(),
            at: 0,
            to: None,
            tries: 0,
        }))
    }

    async fn range(
        &self,
        url: &str,
        pin: &Pin,
        from: u64,
        to: u64,
    ) -> Result<HttpResponse, SplitError> {
        let mut headers = range(from, to);
        match pin.tag.as_deref() {
            // A weak one does not say that each byte is the same; it is only compared.
            Some(tag) if tag.starts_with('"') => add(&mut headers, "if-match", tag),
            Some(tag) if !tag.starts_with("W/") => add(&mut headers, "if-unmodified-since", tag),
            _ => {}
        }
        let response = self.get(url, &headers).await?;
        let status = response.status();
        if matches!(
            status,
            StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE
        ) {
            return Err(changed(url, "its server says so"));
        }
        if status != StatusCode::PARTIAL_CONTENT {
            check_status(url, status)?;
            if tag_of(response.headers()) != pin.tag {
                return Err(changed(url, "its server says so"));
            }
            return Err(SplitError::Temporary(
                format!(
                    "the server of {:?} gives no parts of it any more",
                    shown(url)
                )
                .into(),
            ));
        }
        let (begin, size) = content_range(response.headers()).ok_or_else(|| odd(url))?;
        if size != pin.size || tag_of(response.headers()) != pin.tag {
            return Err(changed(
                url,
                &format!("it had {} bytes, now it has {size}", pin.size),
            ));
        }
        if begin != from {
            return Err(odd(url));
        }
        Ok(response)
    }

    async fn get(&self, url: &str, headers: &HeaderMap) -> Result<HttpResponse, SplitError> {
        let got = self.client.get(url, headers, SILENCE).await;
        got.map_err(|error| match error {
            ConfinedError::Refused(refusal) => SplitError::Definition(refusal),
            ConfinedError::Http(error) => SplitError::Temporary(
                format!("{:?} cannot be read: {}", shown(url), error.innermost()).into(),
            ),
        })
    }
}

/// Reads a response. A range that breaks off is asked for again from there on.
struct Body {
    web: Web,
    url: String,
    pin: Pin,
    flow: Flow,
    response: HttpResponse,
    piece: Bytes,
    at: u64,
    /// Where the range ends; none of a whole file.
    to: Option<u64>,
    tries: u32,
}

impl Body {
    /// Returns whether the range, or else the response, goes on.
    fn next_piece(&mut self) -> Result<bool, SplitError> {
        let left = self.to.map_or(u64::MAX, |to| to - self.at);
        if left == 0 {
            return Ok(false);
        }
        let next = timeout(SILENCE, self.response.chunk());
        let problem = match self.flow.wait(next)? {
            Ok(Ok(Some(mut piece))) => {
                // A server may send more than it was asked for.
                piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                self.flow.came(piece.len());
                self.at += piece.len() as u64;
                self.tries = 0;
                self.piece = piece;
                return Ok(true);
            }
            // The response is as long as it said it would be.
            Ok(Ok(None)) => return Ok(false),
            Ok(Err(error)) => error.innermost(),
            Err(_) => format!("nothing came for {} s", SILENCE.as_secs()),
        };
        let failed = || {
            let url = shown(&self.url);
            let text = format!("{url:?} broke off at byte {}: {problem}", self.at);
            SplitError::Temporary(text.into())
        };
        let to = self.to.ok_or_else(failed)?;
        if self.tries == TRIES {
            return Err(failed());
        }
        self.tries += 1;
        self.flow.broke_off()?;
        let again = async {
            sleep(PAUSE).await;
            self.web.range(&self.url, &self.pin, self.at, to).await
        };
        self.response = self.flow.wait(again)??;
        Ok(true)
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            if !self.next_piece().map_err(error_for_reader)? {
                return Ok(0);
            }
        }
        let length = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

fn range(from: u64, to: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    add(&mut headers, "range", &format!("bytes={from}-{}", to - 1));
    headers
}

fn add(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Returns what a server says of the state of a file.
fn tag_of(headers: &HeaderMap) -> Option<String> {
    let of = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
    of("etag").or_else(|| of("last-modified"))
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get("content-length")?.to_str().ok()?.parse().ok()
}

/// Returns where a part begins, and the size of the whole.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let text = headers.get("content-range")?.to_str().ok()?;
    let (part, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (begin, _) = part.split_once('-')?;
    Some((begin.parse().ok()?, size.parse().ok()?))
}

fn check_status(url: &str, status: StatusCode) -> Result<(), SplitError> {
    let url = shown(url);
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(SplitError::Missing(format!(
            "{url:?} is not there: its server responds with {status}"
        ))),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Err(busy(&url, status)),
        status if status.is_server_error() => Err(busy(&url, status)),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(SplitError::Definition(format!(
            "{url:?} may not be read: its server responds with {status}"
        ))),
        status => Err(SplitError::Definition(format!(
            "{url:?} cannot be read: its server responds with {status}"
        ))),
    }
}

fn busy(url: &str, status: StatusCode) -> SplitError {
    SplitError::Temporary(
        format!("{url:?} cannot be read now: its server responds with {status}").into(),
    )
}

fn odd(url: &str) -> SplitError {
    SplitError::Definition(format!(
        "the server of {:?} responds with another part of it than the one that was asked for",
        shown(url)
    ))
}
