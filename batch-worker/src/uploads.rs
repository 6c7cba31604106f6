//! Uploads: sources that clients have sent to the job service. A worker asks a job service over the
//! broker where and with which key it reads one, and then reads ranges of it over HTTP.
//!
//! What must stay true: the key is in no error, and no job reads an upload of another partition.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use contract::rest::ErrorBody;
use contract::{UPLOAD_KEY_HEADER, UPLOADS_PIPE, UploadAnswer, UploadQuery};
use framework::broker::Broker;
use framework::http::{self, HttpClient, HttpError, HttpResponse, Method, StatusCode};
use framework::tls::Tls;
use tokio::time::timeout;

use crate::SplitError;
use crate::reading::{Flow, Reading, error_for_reader};

/// How long a job service may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may take, and how long nothing may come.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const SILENCE_LIMIT: Duration = Duration::from_mins(1);

/// The largest body of an error, in bytes.
const LONGEST_ERROR: usize = 64 * 1024;

/// The bytes of an upload, and their digest.
type Identity = (u64, String);

/// What reads a range of an upload.
type Bytes = Box<dyn Read + Send>;

/// Reads the uploads of the job services on a broker.
#[derive(Clone)]
pub struct Uploads {
    broker: Arc<dyn Broker>,
    http: HttpClient,
}

impl Uploads {
    /// Returns a reader that asks the job services on this broker, and whose connections trust so.
    pub fn new(broker: Arc<dyn Broker>, tls: &Tls) -> Self {
        let http = HttpClient::new(tls, CONNECT_LIMIT);
        Self { broker, http }
    }

    /// Returns the bytes of an upload, and their digest. Blocks.
    pub(crate) fn look(
        &self,
        id: &str,
        partition: Option<&str>,
        reading: &Reading,
    ) -> Result<Identity, SplitError> {
        let found = reading.wait(self.ask(id, partition))??;
        Ok(identity_of(&found))
    }

    /// Opens the bytes `from..to` of an upload. Returns also what [`look`](Self::look) does.
    /// Blocks.
    pub(crate) fn open(
        &self,
        id: &str,
        partition: Option<&str>,
        (from, to): (u64, u64),
        reading: &Reading,
    ) -> Result<(Identity, Bytes), SplitError> {
        let found = reading.wait(self.ask(id, partition))??;
        let identity = identity_of(&found);
        if from >= to {
            return Ok((identity, Box::new(io::empty())));
        }
        let mut flow = Flow::new(reading, format!("upload://{id}"));
        let response = flow.wait(self.get(id, &found, (from, to)))??;
        let reader = Reader {
            uploads: self.clone(),
            id: id.to_owned(),
            found,
            next: from,
            to,
            response,
            flow,
            chunk: io::Cursor::default(),
        };
        Ok((identity, Box::new(reader)))
    }

    async fn ask(&self, id: &str, partition: Option<&str>) -> Result<UploadAnswer, SplitError> {
        let Some(partition) = partition else {
            let problem = format!("the source {id:?} can be read for a job only");
            return Err(SplitError::Definition(problem));
        };
        let question = UploadQuery {
            upload: id.to_owned(),
            partition: partition.to_owned(),
        };
        let question = serde_json::to_vec(&question)?;
        let asked = self.broker.ask(UPLOADS_PIPE, question.into(), ANSWER_LIMIT);
        let answer = asked
            .await
            .map_err(|error| format!("no job service says where the source {id:?} is: {error}"))?;
        let answer: UploadAnswer = serde_json::from_slice(&answer)?;
        match answer.refusal {
            Some(refusal) => Err(SplitError::Missing(refusal.message)),
            None => Ok(answer),
        }
    }

    async fn get(
        &self,
        id: &str,
        found: &UploadAnswer,
        (from, to): (u64, u64),
    ) -> Result<HttpResponse, SplitError> {
        let mut request = http::request(Method::GET, &found.url)?;
        let fields = [
            (UPLOAD_KEY_HEADER, found.key.clone()),
            ("range", format!("bytes={from}-{}", to - 1)),
        ];
        for (name, value) in fields {
            let mut value: http::HeaderValue = value.parse()?;
            value.set_sensitive(true);
            request.headers_mut().insert(name, value);
        }
        let sent = timeout(SILENCE_LIMIT, self.http.send(request, None)).await?;
        let response = sent.map_err(|error| {
            let reason = error.innermost();
            format!("the source {id:?} cannot be read from the job service: {reason}")
        })?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => Ok(response),
            // It is damaged, and is so when it is read again.
            StatusCode::CONFLICT => Err(SplitError::Definition(message_of(response).await?)),
            status => Err(format!(
                "the source {id:?} cannot be read: the job service responds with {status}"
            )
            .into()),
        }
    }
}

fn identity_of(found: &UploadAnswer) -> Identity {
    (found.bytes, format!("sha256:{}", found.sha256))
}

/// Returns the message of an error of the job service.
async fn message_of(mut response: HttpResponse) -> Result<String, SplitError> {
    let body = response.read(LONGEST_ERROR).await?;
    let body: ErrorBody = serde_json::from_slice(&body)?;
    Ok(body.message)
}

/// Reads a response on a thread that may block.
struct Reader {
    uploads: Uploads,
    id: String,
    found: UploadAnswer,
    /// The position of the byte that comes next.
    next: u64,
    to: u64,
    response: HttpResponse,
    flow: Flow,
    chunk: io::Cursor<Vec<u8>>,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.chunk.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let next = timeout(SILENCE_LIMIT, self.response.chunk());
            match self.flow.wait(next).map_err(error_for_reader)?? {
                Ok(Some(chunk)) => {
                    self.next += chunk.len() as u64;
                    self.flow.came(chunk.len());
                    self.chunk = io::Cursor::new(chunk.to_vec());
                }
                Ok(None) => return Ok(0),
                Err(error) => return Err(self.reason(&error)),
            }
        }
    }
}

impl Reader {
    /// Returns why the response broke off. The job service refuses the rest if it is damaged.
    fn reason(&mut self, error: &HttpError) -> io::Error {
        let rest = (self.next, self.to);
        let rest = self.uploads.get(&self.id, &self.found, rest);
        match self.flow.wait(rest) {
            Err(refusal) | Ok(Err(refusal @ SplitError::Definition(_))) => {
                error_for_reader(refusal)
            }
            _ => io::Error::other(error.innermost()),
        }
    }
}

impl fmt::Debug for Uploads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uploads").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use framework::broker::memory::Memory;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::spawn_blocking;

    use super::*;
    use crate::reading::error_of;

    #[tokio::test]
    async fn response_that_breaks_off_because_the_source_is_damaged_fails_the_batch_with_the_reason()
     {
        let body = r#"{"message": "The source 'x' is damaged."}"#;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/content", listener.local_addr().unwrap());
        let serve = async {
            for (range, answer) in [
                (
                    "bytes=2-9",
                    "206 Partial Content\r\ncontent-length: 8\r\n\r\n2345".to_owned(),
                ),
                (
                    "bytes=6-9",
                    format!(
                        "409 Conflict\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    ),
                ),
            ] {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(socket.read_u8().await.unwrap());
                }
                let request = String::from_utf8(request).unwrap();
                assert!(request.contains(range), "{request}");
                let answer = format!("HTTP/1.1 {answer}");
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let uploads = Uploads::new(Arc::new(Memory::new()), &Tls::default());
        let found = UploadAnswer {
            url,
            key: "key".to_owned(),
            ..UploadAnswer::default()
        };
        let read = async {
            let response = uploads.get("x", &found, (2, 10)).await.unwrap();
            let mut reader = Reader {
                uploads: uploads.clone(),
                id: "x".to_owned(),
                found,
                next: 2,
                to: 10,
                response,
                flow: Flow::new(&Reading::default(), "upload://x".to_owned()),
                chunk: io::Cursor::default(),
            };
            let mut read = Vec::new();
            let all = move || (reader.read_to_end(&mut read).unwrap_err(), read);
            spawn_blocking(all).await.unwrap()
        };
        let ((error, read), ()) = tokio::join!(read, serve);
        assert_eq!(read, b"2345");
        let error = error_of(error);
        assert!(
            matches!(&error, SplitError::Definition(text) if text == "The source 'x' is damaged."),
            "{error:?}"
        );
    }
}
