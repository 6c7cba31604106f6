//! The tokens of the job service.

use contract::rest::{CreatedToken, NewToken, Tokens};
use framework::http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::transport::Call;
use super::{Client, ClientError, parsed};

impl Client {
    /// Creates a token. Its secret cannot be read again.
    pub async fn create_token(&self, new: &NewToken) -> Result<CreatedToken, ClientError> {
        let url = self.service_url("tokens", &[]);
        let body = serde_json::to_vec(new).unwrap_or_default();
        let (_, body) = self
            .exchange(Call::new(Method::POST, &url).json(body))
            .await?;
        parsed(&body, &url)
    }

    /// Returns the tokens, without their secrets.
    pub async fn tokens(&self) -> Result<Tokens, ClientError> {
        self.read(self.service_url("tokens", &[])).await
    }

    /// Revokes the token with this id.
    pub async fn revoke_token(&self, id: &str) -> Result<(), ClientError> {
        let id = utf8_percent_encode(id, NON_ALPHANUMERIC);
        let url = self.service_url(&format!("tokens/{id}"), &[]);
        self.exchange(Call::new(Method::DELETE, &url)).await?;
        Ok(())
    }
}
