//! The requests about conditions that tasks wait for.

use contract::rest::{WaitedCondition, WaitedConditions};
use framework::http::Method;

use super::{Client, ClientError, encode, parsed};

impl Client {
    /// Returns a page of the conditions that match this query.
    pub async fn conditions(
        &self,
        query: &[(&str, String)],
    ) -> Result<WaitedConditions, ClientError> {
        self.read(self.service_url("conditions", query)).await
    }

    /// Returns a condition with the jobs that wait for it.
    pub async fn condition(&self, key: &str) -> Result<WaitedCondition, ClientError> {
        let path = format!("conditions/{}", encode(key));
        self.read(self.service_url(&path, &[])).await
    }

    /// Does something with a condition: `test`, `release` or `fail`.
    pub async fn steer_condition(
        &self,
        key: &str,
        operation: &str,
    ) -> Result<WaitedCondition, ClientError> {
        let path = format!("conditions/{}/{operation}", encode(key));
        let url = self.service_url(&path, &[]);
        let (_, body) = self.send(Method::POST, &url, Vec::new()).await?;
        parsed(&body, &url)
    }
}
