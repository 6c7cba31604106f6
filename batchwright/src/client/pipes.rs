//! The requests about pipes and workers.

use std::time::Duration;

use contract::{Pipe, PipeMessage, Pipes, PutRequest, TakeRequest, TakenMessages, Workers};
use framework::http::Method;

use super::transport::Call;
use super::{Client, ClientError, encode, parsed};

/// How long a request may take that puts messages into a pipe. The service waits half a minute for
/// the broker.
const PUT_LIMIT: Duration = Duration::from_mins(1);

impl Client {
    /// Returns the pipes that the job service knows.
    pub async fn pipes(&self) -> Result<Pipes, ClientError> {
        self.read(format!("{}/pipes", self.base)).await
    }

    /// Returns a pipe, with this many of its first messages.
    pub async fn pipe(&self, pipe: &str, peek: Option<u32>) -> Result<Pipe, ClientError> {
        let peek = peek.unwrap_or(0);
        self.read(format!("{}/pipes/{}?peek={peek}", self.base, encode(pipe)))
            .await
    }

    /// Returns the workers of all processes.
    pub async fn workers(&self) -> Result<Workers, ClientError> {
        self.read(format!("{}/workers", self.base)).await
    }

    /// Takes messages from a pipe, and acknowledges those that the request names.
    pub async fn take(
        &self,
        pipe: &str,
        request: &TakeRequest,
    ) -> Result<TakenMessages, ClientError> {
        let url = format!("{}/pipes/{}/take", self.base, encode(pipe));
        let body = serde_json::to_vec(request).unwrap_or_default();
        let (_, body) = self.send(Method::POST, &url, body).await?;
        parsed(&body, &url)
    }

    /// Puts messages into a pipe.
    pub async fn put_messages(
        &self,
        pipe: &str,
        messages: Vec<PipeMessage>,
    ) -> Result<(), ClientError> {
        let url = format!("{}/pipes/{}/put", self.base, encode(pipe));
        let body = serde_json::to_vec(&PutRequest { messages }).unwrap_or_default();
        // Longer than the job service waits for the broker.
        let call = Call::new(Method::POST, &url).limit(PUT_LIMIT).json(body);
        self.exchange(call).await?;
        Ok(())
    }
}
