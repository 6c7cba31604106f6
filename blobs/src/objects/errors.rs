//! What the errors of buckets mean, and what a person needs of them.
//!
//! What must stay true: no text of an error shows a credential.

use object_store::Error;

use crate::Cause;
use crate::location::Cloud;

/// The codes of what has no right to do something.
const DENIALS: [&str; 3] = [
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
];
/// What the library writes before the status of a response.
const STATUS: &str = "status code: ";
/// What the library writes of requests whose errors have no kind.
const LIST: &str = "performing list request";
const TOKEN: &str = "performing token request";
const DELETE: &str = "performing bulk delete request";
/// What the library writes when one request deletes several objects and the server refuses one of
/// them.
const NOT_DELETED: &str = "(code: 403)";
/// What the library writes before it quotes a key that it cannot read.
const UNREADABLE: [&str; 2] = [
    "Unable to decode service account file",
    "Error reading pem file",
];
/// The longest text of an error.
const LONGEST: usize = 300;

/// Returns what callers tell apart.
pub fn cause_of(error: &Error) -> Cause {
    match error {
        Error::Precondition { .. } => Cause::Changed,
        _ if is_denied(error) => Cause::Denied,
        Error::NotFound { .. } => Cause::Missing,
        _ if status_of(LIST, error) == Some(404) => Cause::Missing,
        _ => Cause::Other,
    }
}

/// Returns whether an error says that one has no right to do something.
fn is_denied(error: &Error) -> bool {
    let says_so = |text: &str| {
        DENIALS
            .iter()
            .any(|code| text.contains(&format!(">{code}<")))
    };
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => true,
        error => {
            let status = status_of(LIST, error).or_else(|| status_of(DELETE, error));
            matches!(status, Some(401 | 403))
                || error.to_string().contains(NOT_DELETED)
                // Who asks is not known, or no longer.
                || matches!(status_of(TOKEN, error), Some(400 | 401 | 403))
                || says_so(&error.to_string())
        }
    }
}

/// Returns the status of the response to such a request, if the error has no kind of its own.
fn status_of(request: &str, error: &Error) -> Option<u16> {
    let Error::Generic { .. } = error else {
        return None;
    };
    let text = error.to_string();
    let (_, after) = text.split_once(request)?;
    let (_, status) = after.split_once(STATUS)?;
    status.get(..3)?.parse().ok()
}

/// Returns what a person needs of an error, on one line: an error of a bucket is a page of XML.
pub fn text_of(cloud: Cloud, error: &Error) -> String {
    let text = error.to_string();
    if UNREADABLE.iter().any(|it| text.contains(it)) {
        return "the credentials (GOOGLE_…, or the file that gcloud has written) cannot be read: expected the JSON of a key of a service \
                account, or of a user; federated and impersonated identities are not supported"
            .to_owned();
    }
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once('<')?.0)
    };
    let text = match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        _ => match text.split_once(STATUS) {
            Some((_, status)) => status.trim_end_matches([':', ' ']).to_owned(),
            None => with_cause(text, error),
        },
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut text = words.join(" ");
    text.truncate(text.floor_char_boundary(LONGEST));
    if is_denied(error) {
        let variables = match cloud {
            Cloud::S3 => "AWS_…",
            Cloud::Google => "GOOGLE_…",
            Cloud::Azure => "AZURE_…",
        };
        format!("access is denied ({text}); check its rights and the credentials ({variables})")
    } else {
        text
    }
}

/// Adds the innermost cause, for example what is wrong with a certificate.
fn with_cause(text: String, error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let cause = cause.to_string();
    if text.contains(&cause) {
        text
    } else {
        format!("{text}: {cause}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_s3_is_one_line_with_its_code_and_message() {
        let generic = |text: &str| Error::Generic {
            store: "S3",
            source: text.to_owned().into(),
        };
        let page = "Server returned 503: <?xml version=\"1.0\"?>\n<Error><Code>SlowDown</Code>\n<Message>Reduce your\nrate</Message></Error>";
        assert_eq!(
            text_of(Cloud::S3, &generic(page)),
            "SlowDown: Reduce your rate"
        );
        let long = text_of(Cloud::S3, &generic(&"ü".repeat(10_000)));
        assert!(long.len() <= LONGEST, "{long}");
        let denied = Error::PermissionDenied {
            path: "a".to_owned(),
            source: page.into(),
        };
        let denied = text_of(Cloud::S3, &denied);
        assert!(denied.starts_with("access is denied (SlowDown"), "{denied}");
    }
}
