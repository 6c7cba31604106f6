//! The requests about dead letters.

use contract::rest::{DeadLetter, DeadLetters, DeletedLetters, ReplayedLetter, ReplayedLetters};
use framework::http::Method;

use super::transport::Call;
use super::{BULK_LIMIT, Client, ClientError, encode, parsed};

impl Client {
    /// Returns the partition of the client.
    pub fn partition(&self) -> &str {
        &self.partition
    }

    /// Returns a page of the dead letters that match these conditions.
    pub async fn dead_letters(&self, query: &[(&str, String)]) -> Result<DeadLetters, ClientError> {
        self.read(self.service_url("deadLetters", query)).await
    }

    /// Returns a dead letter with its message.
    pub async fn dead_letter(&self, id: i64) -> Result<DeadLetter, ClientError> {
        self.read(self.service_url(&format!("deadLetters/{id}"), &[]))
            .await
    }

    /// Replays a dead letter, to the pipe from which it came or to this one.
    pub async fn replay_letter(
        &self,
        id: i64,
        pipe: Option<&str>,
    ) -> Result<ReplayedLetter, ClientError> {
        let pipe: Vec<_> = pipe
            .map(|pipe| ("pipe", pipe.to_owned()))
            .into_iter()
            .collect();
        let url = self.service_url(&format!("deadLetters/{id}/replay"), &pipe);
        let (_, body) = self.send(Method::POST, &url, Vec::new()).await?;
        parsed(&body, &url)
    }

    /// Replays some of the dead letters that match these conditions.
    pub async fn replay_letters(
        &self,
        query: &[(&str, String)],
    ) -> Result<ReplayedLetters, ClientError> {
        let url = self.service_url("deadLetters:replay", query);
        let call = Call::new(Method::POST, &url).limit(BULK_LIMIT);
        let (_, body) = self.exchange(call).await?;
        parsed(&body, &url)
    }

    /// Deletes a dead letter.
    pub async fn delete_letter(&self, id: i64) -> Result<DeletedLetters, ClientError> {
        let url = self.service_url(&format!("deadLetters/{id}"), &[]);
        let (_, body) = self.send(Method::DELETE, &url, Vec::new()).await?;
        parsed(&body, &url)
    }

    /// Deletes some of the dead letters that match these conditions.
    pub async fn delete_letters(
        &self,
        query: &[(&str, String)],
    ) -> Result<DeletedLetters, ClientError> {
        let url = self.service_url("deadLetters", query);
        let call = Call::new(Method::DELETE, &url).limit(BULK_LIMIT);
        let (_, body) = self.exchange(call).await?;
        parsed(&body, &url)
    }

    pub(super) fn service_url(&self, path: &str, query: &[(&str, String)]) -> String {
        let mut url = format!("{}/{path}", self.base);
        for (at, (name, value)) in query.iter().enumerate() {
            let separator = if at == 0 { '?' } else { '&' };
            url.extend([&format!("{separator}{name}="), &encode(value)].map(String::as_str));
        }
        url
    }
}
