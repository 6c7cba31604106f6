//! Uploads: sources that clients have sent to the job service. A worker asks a job service over the broker where and with which key it
//! reads one, and then reads ranges of it over HTTP.
//!
//! What must stay true: the key is in no error, and no job reads an upload of another partition.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use contract::{UPLOAD_KEY_HEADER, UPLOADS_PIPE, UploadAnswer, UploadQuery};
use framework::broker::Broker;
use framework::http::{self, HttpClient, HttpResponse, Method, StatusCode};
use framework::tls::Tls;
use tokio::time::timeout;

use crate::SplitError;
use crate::reading::{Flow, Reading, error_for_reader};

/// How long a job service may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may take, and how long nothing may come.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const SILENCE_LIMIT: Duration = Duration::from_mins(1);

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

    /// Opens the bytes `from..to` of an upload. Returns also what [`look`](Self::look) does. Blocks.
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

/// Reads a response on a thread that may block.
struct Reader {
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
                    self.flow.came(chunk.len());
                    self.chunk = io::Cursor::new(chunk.to_vec());
                }
                Ok(None) => return Ok(0),
                Err(error) => return Err(io::Error::other(error.innermost())),
            }
        }
    }
}

impl fmt::Debug for Uploads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uploads").finish_non_exhaustive()
    }
}
