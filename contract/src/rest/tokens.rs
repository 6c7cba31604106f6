//! The tokens of the service, and what their bearers may do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::PartitionId;

/// What somebody may do. Each of the first four, which hold in partitions, contains those before
/// it; the last two hold for the whole installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum AccessRole {
    /// See jobs, their failures and their outputs.
    View,
    /// Create jobs, and steer one's own.
    Submit,
    /// Steer all jobs, and replay dead letters.
    Operate,
    /// Create and revoke tokens with these rights or fewer.
    Admin,
    /// See pipes and workers, take and put messages, and act on conditions.
    Operator,
    /// Read the metrics.
    Metrics,
}

impl AccessRole {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::View,
        Self::Submit,
        Self::Operate,
        Self::Admin,
        Self::Operator,
        Self::Metrics,
    ];

    /// Returns the name in JSON and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Submit => "submit",
            Self::Operate => "operate",
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Metrics => "metrics",
        }
    }

    /// Returns whether it holds in partitions, and not for the installation.
    pub const fn is_of_partitions(self) -> bool {
        matches!(
            self,
            Self::View | Self::Submit | Self::Operate | Self::Admin
        )
    }
}

impl fmt::Display for AccessRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AccessRole {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("{text:?} is not a role; expected one of {names}")
        })
    }
}

/// Partitions by their ids: one of them, or with a `*` at the end all whose ids begin so.
///
/// ```
/// use batchwright_contract::PartitionId;
/// use batchwright_contract::rest::Partitions;
///
/// let reports: Partitions = "reports-*".parse().unwrap();
/// assert!(reports.contains(&PartitionId::parse("reports-eu").unwrap()));
/// assert!(!reports.contains(&PartitionId::parse("orders").unwrap()));
/// assert!("*-eu".parse::<Partitions>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Partitions {
    /// The id, or its beginning.
    text: String,
    is_beginning: bool,
}

/// A text that is neither the id of a partition nor the beginning of some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} does not name partitions; expected the id of one, the beginning of some followed by `*`, or `*`"
)]
pub struct InvalidPartitions(String);

impl Partitions {
    /// Returns all partitions.
    pub const fn all() -> Self {
        Self {
            text: String::new(),
            is_beginning: true,
        }
    }

    /// Returns whether a partition is among these.
    pub fn contains(&self, partition: &PartitionId) -> bool {
        if self.is_beginning {
            partition.as_str().starts_with(&self.text)
        } else {
            partition.as_str() == self.text
        }
    }

    /// Returns whether all others are among these.
    pub fn contains_all(&self, others: &Self) -> bool {
        if self.is_beginning {
            others.text.starts_with(&self.text)
        } else {
            self == others
        }
    }
}

impl FromStr for Partitions {
    type Err = InvalidPartitions;

    fn from_str(text: &str) -> Result<Self, InvalidPartitions> {
        let (id, is_beginning) = match text.strip_suffix('*') {
            Some(beginning) => (beginning, true),
            None => (text, false),
        };
        let is_valid = PartitionId::parse(id).is_ok() || id.is_empty() && is_beginning;
        if !is_valid {
            return Err(InvalidPartitions(text.to_owned()));
        }
        Ok(Self {
            text: id.to_owned(),
            is_beginning,
        })
    }
}

impl TryFrom<String> for Partitions {
    type Error = InvalidPartitions;

    fn try_from(text: String) -> Result<Self, InvalidPartitions> {
        text.parse()
    }
}

impl From<Partitions> for String {
    fn from(partitions: Partitions) -> Self {
        partitions.to_string()
    }
}

impl fmt::Display for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        f.write_str(if self.is_beginning { "*" } else { "" })
    }
}

/// What somebody may do, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct Access {
    /// The roles. Those of partitions hold in all of `partitions`.
    pub roles: Vec<AccessRole>,
    /// The partitions in which the roles hold.
    #[serde(default)]
    #[cfg_attr(feature = "utoipa", schema(value_type = Vec<String>, example = json!(["reports-*"])))]
    pub partitions: Vec<Partitions>,
}

impl Access {
    /// Returns the access of somebody who may do everything.
    pub fn full() -> Self {
        Self {
            roles: vec![AccessRole::Admin, AccessRole::Operator, AccessRole::Metrics],
            partitions: vec![Partitions::all()],
        }
    }

    /// The largest number of partitions that it names.
    const MAX_PARTITIONS: usize = 100;

    /// Returns what is wrong with an access that somebody is to have.
    ///
    /// # Errors
    /// It has no roles, more partitions than it may, or partitions without roles that hold there,
    /// or the other way round.
    pub fn check(&self) -> Result<(), String> {
        let of_partitions = self.roles.iter().find(|role| role.is_of_partitions());
        match of_partitions {
            _ if self.roles.is_empty() => Err("A role is missing.".to_owned()),
            Some(role) if self.partitions.is_empty() => Err(format!(
                "The role '{role}' holds in partitions, and none are named."
            )),
            None if !self.partitions.is_empty() => {
                Err("Partitions are named, but no role that holds there.".to_owned())
            }
            _ if self.partitions.len() > Self::MAX_PARTITIONS => Err(format!(
                "More than {} partitions are named.",
                Self::MAX_PARTITIONS
            )),
            _ => Ok(()),
        }
    }

    /// Returns whether it has a role for the installation.
    pub fn has(&self, role: AccessRole) -> bool {
        self.roles.contains(&role)
    }

    /// Returns whether it has a role in a partition: that one or one that contains it.
    pub fn has_in(&self, role: AccessRole, partition: &PartitionId) -> bool {
        self.reaches(role) && self.partitions.iter().any(|them| them.contains(partition))
    }

    /// Returns whether it has a role in all partitions.
    pub fn has_everywhere(&self, role: AccessRole) -> bool {
        self.reaches(role) && self.partitions.contains(&Partitions::all())
    }

    /// Returns whether its bearer may give this access to others: it is an administrator of all
    /// these partitions, and has the roles for the installation itself.
    pub fn may_give(&self, other: &Self) -> bool {
        let is_own = |them: &Partitions| self.partitions.iter().any(|own| own.contains_all(them));
        let may_give = |role: &AccessRole| role.is_of_partitions() || self.has(*role);
        self.has(AccessRole::Admin)
            && other.partitions.iter().all(is_own)
            && other.roles.iter().all(may_give)
            // A token without partitions is of the installation.
            && (!other.partitions.is_empty() || self.has_everywhere(AccessRole::Admin))
    }

    fn reaches(&self, role: AccessRole) -> bool {
        let of_partitions = self.roles.iter().filter(|it| it.is_of_partitions());
        of_partitions.max().is_some_and(|own| *own >= role)
    }
}

/// A token that is to be created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewToken {
    /// Whose token it is: 1 to 100 characters.
    pub name: String,
    /// What its bearer may do.
    pub roles: Vec<AccessRole>,
    /// The partitions in which the roles hold.
    #[serde(default)]
    #[cfg_attr(feature = "utoipa", schema(value_type = Vec<String>, example = json!(["reports-*"])))]
    pub partitions: Vec<Partitions>,
    /// From when on it is not valid any more, in milliseconds since 1970; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_time: Option<i64>,
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Token {
    /// Its beginning, which is no secret.
    pub id: String,
    /// Whose token it is.
    pub name: String,
    /// What its bearer may do, and where.
    #[serde(flatten)]
    pub access: Access,
    /// Who has created it; absent: somebody with access to the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// When it was created, in milliseconds since 1970.
    pub create_time: i64,
    /// From when on it is not valid any more, in milliseconds since 1970; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_time: Option<i64>,
    /// When it was last used, to within a minute, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_use_time: Option<i64>,
}

/// A token that was just created.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct CreatedToken {
    /// The token itself. Nobody can read it again.
    pub secret: String,
    /// What is known of it from now on.
    #[serde(flatten)]
    pub token: Token,
}

impl fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.token.fmt(f)
    }
}

/// The tokens of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct Tokens {
    /// The oldest first.
    pub tokens: Vec<Token>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(roles: &str, partitions: &str) -> Access {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let (roles, partitions): (Vec<String>, Vec<String>) = (words(roles), words(partitions));
        Access {
            roles: roles.iter().map(|role| role.parse().unwrap()).collect(),
            partitions: partitions
                .iter()
                .map(|them| them.parse().unwrap())
                .collect(),
        }
    }

    #[test]
    fn role_contains_those_before_it_and_holds_only_in_its_partitions() {
        let reports = access("operate", "reports-* orders");
        for (role, partition, has) in [
            (AccessRole::View, "reports-eu", true),
            (AccessRole::Operate, "reports-", true),
            (AccessRole::Admin, "reports-eu", false),
            (AccessRole::View, "orders", true),
            (AccessRole::View, "orders-2", false),
            (AccessRole::View, "report", false),
        ] {
            let partition = PartitionId::parse(partition).unwrap();
            assert_eq!(reports.has_in(role, &partition), has, "{role} {partition}");
        }
        assert!(!reports.has_everywhere(AccessRole::View));
        // A role for the installation is none in partitions.
        assert!(!access("operator metrics", "*").has_everywhere(AccessRole::View));
        assert!(!access("view", "").has_everywhere(AccessRole::View));
    }

    #[test]
    fn administrator_gives_no_more_than_it_has() {
        let admin = access("admin metrics", "a-* b");
        for (roles, partitions, may) in [
            ("view", "a-1", true),
            ("admin", "a-* b", true),
            ("submit metrics", "a-x*", true),
            ("submit", "a*", false),
            ("submit", "b*", false),
            ("submit", "a-1 c", false),
            ("submit", "*", false),
            ("operator", "b", false),
            ("metrics", "", false),
        ] {
            let other = access(roles, partitions);
            assert_eq!(admin.may_give(&other), may, "{roles} {partitions}");
        }
        assert!(Access::full().may_give(&access("metrics", "")));
        assert!(!access("operate", "b").may_give(&access("view", "b")));
    }

    #[test]
    fn text_that_names_no_partitions_is_refused() {
        for text in ["", "a*b", "**", "a.b", "a b*c", &"x".repeat(41)] {
            assert!(text.parse::<Partitions>().is_err(), "{text:?}");
        }
        for text in ["*", "a", "a-*"] {
            assert_eq!(text.parse::<Partitions>().unwrap().to_string(), text);
        }
    }
}
