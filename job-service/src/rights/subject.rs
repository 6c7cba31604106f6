//! Whoever sends a request: a person or a program with a token, somebody whom a proxy names, or
//! anybody where nobody needs to be known.

use std::sync::{Arc, LazyLock};

use contract::PartitionId;
use contract::rest::{Access, AccessRole};

use crate::http::{ApiError, ApiResult};

tokio::task_local! {
    static CURRENT: Arc<Subject>;
}

static ANYBODY: LazyLock<Arc<Subject>> =
    LazyLock::new(|| Arc::new(Subject::unnamed(Known::Anybody, Access::full())));
static EVERYBODY: LazyLock<Arc<Subject>> =
    LazyLock::new(|| Arc::new(Subject::unnamed(Known::Everybody, Access::full())));
static NOBODY: LazyLock<Arc<Subject>> =
    LazyLock::new(|| Arc::new(Subject::unnamed(Known::Nobody, Access::default())));

/// Whoever sends a request, and what they may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    name: Option<String>,
    /// Each of them alone.
    access: Vec<Access>,
    known: Known,
}

/// How the service knows somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Not at all, and nobody has decided that they may do everything.
    Anybody,
    /// Not at all, and the operator lets them do everything.
    Everybody,
    /// Not at all, though it has to.
    Nobody,
    /// By a token.
    ByToken,
    /// Because a proxy says so.
    ByProxy,
}

impl Subject {
    /// Returns somebody with a name, who may do what each of these allows.
    pub const fn new(name: String, access: Vec<Access>, known: Known) -> Self {
        Self {
            name: Some(name),
            access,
            known,
        }
    }

    fn unnamed(known: Known, access: Access) -> Self {
        Self {
            name: None,
            access: vec![access],
            known,
        }
    }

    /// Returns whoever calls a service for which nobody has decided who may. They may do
    /// everything.
    pub fn anybody() -> Arc<Self> {
        Arc::clone(&ANYBODY)
    }

    /// Returns whoever reaches a service that is open to everybody by a decision.
    pub fn everybody() -> Arc<Self> {
        Arc::clone(&EVERYBODY)
    }

    /// Returns somebody who is not known, and may do nothing.
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

    /// Returns the name, if the service knows it.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns how the service knows it.
    pub const fn known(&self) -> Known {
        self.known
    }

    /// Returns whether it has a role for the installation.
    pub fn has(&self, role: AccessRole) -> bool {
        self.access.iter().any(|access| access.has(role))
    }

    /// Returns whether it has a role in a partition: that one or one that contains it.
    pub fn has_in(&self, role: AccessRole, partition: &PartitionId) -> bool {
        let mut access = self.access.iter();
        access.any(|access| access.has_in(role, partition))
    }

    /// Returns whether it has a role in all partitions.
    pub fn has_everywhere(&self, role: AccessRole) -> bool {
        let mut access = self.access.iter();
        access.any(|access| access.has_everywhere(role))
    }

    /// Returns whether it may give this access to others.
    pub fn may_give(&self, other: &Access) -> bool {
        self.access.iter().any(|access| access.may_give(other))
    }

    /// Returns whether it may see the jobs of a partition.
    pub fn sees(&self, partition: &PartitionId) -> bool {
        self.has_in(AccessRole::View, partition)
    }

    /// Returns whether it may see pipes, workers and conditions.
    pub fn is_operator(&self) -> bool {
        self.has(AccessRole::Operator)
    }

    /// Requires a role in a partition.
    ///
    /// # Errors
    /// Returns 404 if it may not see the partition, and 403 if it lacks the role.
    pub fn needs(&self, role: AccessRole, partition: &PartitionId) -> ApiResult<()> {
        if self.has_in(role, partition) {
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
            None if self.has_everywhere(role) => Ok(()),
            None => Err(ApiError::RoleNeeded(format!(
                "This needs the role '{role}' in all partitions. Name one of yours with the parameter 'partition'."
            ))),
        }
    }
}
