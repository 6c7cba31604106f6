//! Whoever sends a request: a person or a program with a token, or anybody where nobody needs one.

use std::sync::{Arc, LazyLock};

use contract::PartitionId;
use contract::rest::{Access, AccessRole};

use crate::http::{ApiError, ApiResult};

tokio::task_local! {
    static CURRENT: Arc<Subject>;
}

static ANYBODY: LazyLock<Arc<Subject>> =
    LazyLock::new(|| Arc::new(Subject::new(None, Access::full())));
static NOBODY: LazyLock<Arc<Subject>> =
    LazyLock::new(|| Arc::new(Subject::new(None, Access::default())));

/// Whoever sends a request, and what they may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    name: Option<String>,
    access: Access,
}

impl Subject {
    /// Returns a subject; without a name, it is anybody.
    pub const fn new(name: Option<String>, access: Access) -> Self {
        Self { name, access }
    }

    /// Returns whoever calls a service that asks nobody for a token. They may do everything.
    pub fn anybody() -> Arc<Self> {
        Arc::clone(&ANYBODY)
    }

    /// Returns somebody who has shown no token, and may do nothing.
    pub fn nobody() -> Arc<Self> {
        Arc::clone(&NOBODY)
    }

    /// Returns the subject of the request that this task handles; outside of one, nobody.
    pub fn current() -> Arc<Self> {
        CURRENT
            .try_with(Arc::clone)
            .unwrap_or_else(|_| Self::nobody())
    }

    /// Handles a request of this subject.
    pub async fn scope<T>(self: Arc<Self>, handled: impl Future<Output = T>) -> T {
        CURRENT.scope(self, handled).await
    }

    /// Returns the name; `None` for anybody and nobody.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns what it may do.
    pub const fn access(&self) -> &Access {
        &self.access
    }

    /// Returns whether it may see the jobs of a partition.
    pub fn sees(&self, partition: &PartitionId) -> bool {
        self.access.has_in(AccessRole::View, partition)
    }

    /// Returns whether it may see pipes, workers and conditions.
    pub fn is_operator(&self) -> bool {
        self.access.has(AccessRole::Operator)
    }

    /// Requires a role in a partition.
    ///
    /// # Errors
    /// Returns 404 if it may not see the partition, and 403 if it lacks the role.
    pub fn needs(&self, role: AccessRole, partition: &PartitionId) -> ApiResult<()> {
        if self.access.has_in(role, partition) {
            Ok(())
        } else if self.sees(partition) {
            Err(ApiError::RoleNeeded(format!(
                "This needs the role '{role}' in the partition '{partition}'."
            )))
        } else {
            Err(ApiError::partition_not_seen(partition))
        }
    }

    /// Requires a role in one partition, or in all if none is named.
    ///
    /// # Errors
    /// As [`Self::needs`].
    pub fn needs_in_named(&self, role: AccessRole, partition: Option<&str>) -> ApiResult<()> {
        match partition {
            Some(partition) => self.needs(role, &PartitionId::parse(partition)?),
            None if self.access.has_everywhere(role) => Ok(()),
            None => Err(ApiError::RoleNeeded(format!(
                "This needs the role '{role}' in all partitions. Name one of yours with the parameter 'partition'."
            ))),
        }
    }
}
