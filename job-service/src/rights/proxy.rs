//! Whom a proxy in front of the service names: it has authenticated them, and says so in headers.
//!
//! What must stay true: the headers are believed only of a proxy that is known by its address or by
//! a secret. Everybody else can send them, too.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::{HeaderMap, HeaderName};
use contract::rest::{Access, Partitions};

use super::secret::{SecretHash, TokenSecret};
use super::subject::{Known, Subject};
use crate::http::connections::Peer;

/// The header with the secret of the proxy.
const SECRET: HeaderName = HeaderName::from_static("x-batchwright-proxy-secret");
/// The name of a group to which everybody belongs whom the proxy names.
const ALL: &str = "*";
/// The most characters of a name.
const MAX_NAME: usize = 200;

/// How the service knows its proxy, and what that says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyOptions {
    /// The addresses from which it calls.
    pub addresses: Vec<IpAddr>,
    /// The secret that it sends.
    pub secret: Option<SecretHash>,
    /// The header with the name of whoever calls.
    pub subject_header: HeaderName,
    /// The header with their groups, separated by commas.
    pub groups_header: HeaderName,
    /// What the members of groups may do.
    pub groups: Vec<GroupAccess>,
}

/// What the members of a group may do: `engineers=operate,metrics@search-*,orders`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupAccess {
    group: String,
    access: Access,
}

impl ProxyOptions {
    /// Returns whom the proxy names; `None` if the request is not from the proxy, or names nobody.
    pub fn subject(&self, peer: Option<Peer>, headers: &HeaderMap) -> Option<Subject> {
        let is_listed = peer.is_some_and(|Peer(address)| self.addresses.contains(&address));
        let sent = headers.get(SECRET).and_then(|it| it.to_str().ok());
        let sent = sent.and_then(TokenSecret::sent).map(|it| it.hash());
        let knows_secret =
            matches!((self.secret, sent), (Some(own), Some(sent)) if own.is(&sent.to_string()));
        if !is_listed && !knows_secret {
            return None;
        }
        // What a client has sent may stand beside what the proxy says.
        let only = |header: &HeaderName| {
            let mut values = headers.get_all(header).iter();
            let first = values
                .next()
                .map(|value| value.to_str().unwrap_or_default());
            values.next().is_none().then_some(first)
        };
        let name = only(&self.subject_header)??.trim();
        if name.is_empty() || name.chars().count() > MAX_NAME {
            return None;
        }
        let groups = only(&self.groups_header)?.unwrap_or_default();
        let groups: Vec<&str> = groups.split(',').map(str::trim).chain([ALL]).collect();
        let access = self.groups.iter().filter(|it| groups.contains(&&*it.group));
        let access = access.map(|it| it.access.clone()).collect();
        Some(Subject::new(name.to_owned(), access, Known::ByProxy))
    }
}

impl FromStr for GroupAccess {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "expected a group, '=', roles and, for roles in partitions, '@' and partitions, as in \
                    `engineers=operate,metrics@search-*,orders`";
        let (group, access) = text.split_once('=').ok_or(form)?;
        let (roles, partitions) = match access.split_once('@') {
            Some((roles, partitions)) => (roles, Some(partitions)),
            None => (access, None),
        };
        let roles = roles.split(',').map(|role| role.trim().parse());
        let partitions = partitions.into_iter().flat_map(|them| them.split(','));
        let partitions = partitions.map(|them| {
            let parsed = them.trim().parse::<Partitions>();
            parsed.map_err(|error| error.to_string())
        });
        let access = Access {
            roles: roles.collect::<Result<_, String>>()?,
            partitions: partitions.collect::<Result<_, String>>()?,
        };
        let group = group.trim();
        if group.is_empty() {
            return Err(form.to_owned());
        }
        access.check()?;
        Ok(Self {
            group: group.to_owned(),
            access,
        })
    }
}

#[cfg(test)]
mod tests {
    use contract::PartitionId;
    use contract::rest::AccessRole;

    use super::*;

    fn proxy() -> ProxyOptions {
        let secret = TokenSecret::chosen(&"s".repeat(32)).unwrap();
        ProxyOptions {
            addresses: vec!["10.0.0.7".parse().unwrap()],
            secret: Some(secret.hash()),
            subject_header: HeaderName::from_static("x-user"),
            groups_header: HeaderName::from_static("x-groups"),
            groups: ["*=view@shared", "eng=operate,operator@eng-*"]
                .map(|group| group.parse().unwrap())
                .into(),
        }
    }

    const fn secret(text: &str) -> (&'static str, &str) {
        ("x-batchwright-proxy-secret", text)
    }

    #[test]
    fn only_a_known_proxy_is_believed() {
        let headers = |fields: &[(&'static str, &str)]| {
            let fields = fields.iter().map(|(name, value)| {
                let name = HeaderName::from_static(name);
                (name, value.parse().unwrap())
            });
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(name, value);
            }
            headers
        };
        let peer = |address: &str| Some(Peer(address.parse().unwrap()));
        let user = ("x-user", "anna");
        let right = "s".repeat(32);
        for (from, fields, is_believed) in [
            (peer("10.0.0.7"), vec![user], true),
            (peer("10.0.0.8"), vec![user], false),
            (None, vec![user], false),
            (peer("10.0.0.8"), vec![user, secret(&right)], true),
            (peer("10.0.0.8"), vec![user, secret("wrong")], false),
            (peer("10.0.0.8"), vec![user, secret("")], false),
            (peer("10.0.0.7"), vec![("x-user", " ")], false),
            (peer("10.0.0.7"), vec![user, ("x-user", "root")], false),
            (
                peer("10.0.0.7"),
                vec![user, ("x-groups", "a"), ("x-groups", "b")],
                false,
            ),
            (peer("10.0.0.7"), vec![], false),
        ] {
            let subject = proxy().subject(from, &headers(&fields));
            assert_eq!(subject.is_some(), is_believed, "{from:?} {fields:?}");
        }
        let fields = [user, ("x-groups", "ops, eng")];
        let subject = proxy()
            .subject(peer("10.0.0.7"), &headers(&fields))
            .unwrap();
        let of = |id| PartitionId::parse(id).unwrap();
        assert!(subject.has_in(AccessRole::Operate, &of("eng-1")) && subject.is_operator());
        assert!(subject.sees(&of("shared")) && !subject.sees(&of("other")));
        assert!(!subject.has_in(AccessRole::Submit, &of("shared")));
    }

    #[test]
    fn access_of_a_group_that_cannot_be_is_refused() {
        for text in [
            "",
            "eng",
            "eng=",
            "=view@*",
            "eng=boss@*",
            "eng=view",
            "eng=view@*a",
            "eng=metrics@a",
        ] {
            assert!(text.parse::<GroupAccess>().is_err(), "{text}");
        }
        assert!("eng=metrics".parse::<GroupAccess>().is_ok());
    }
}
