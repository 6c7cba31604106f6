//! CAF's names for our settings, and how CAF's values translate into ours. The only table of CAF's
//! variables.
//!
//! Two readers use it: a worker ([`Settings::from_variables`](crate::Settings::from_variables)) and
//! the program `batchwright`. They differ in one row. A worker derives its input pipe from its
//! name, and the program has no name.

use super::SettingsError;
use super::env::{EnvValue, UrlParts, Variables};

/// Who reads a row of [`SETTINGS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// A worker process on its own.
    Worker,
    /// The program `batchwright`.
    Program,
}

/// CAF's names for one of our settings.
#[derive(Debug, Clone, Copy)]
pub struct CafSetting {
    /// Our name, without `BATCHWRIGHT_`.
    pub own: &'static str,
    /// Who reads this row.
    pub readers: &'static [Reader],
    /// CAF's names, and how each value is converted. The first variable that is set counts.
    pub caf: &'static [(&'static str, Conversion)],
}

/// How the value of a CAF variable becomes a value of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// The value stays as it is.
    Same,
    /// `-in` is appended.
    AppendIn,
    /// The concurrency is added, and the sum is limited to 65,535.
    AddConcurrency,
    /// 1 is added, because CAF counts the attempts after the first one.
    AddOne,
    /// Converted to lower case.
    Lowercase,
    /// Leading slashes are removed.
    TrimSlash,
    /// A number that counts as not set unless it is above 0.
    AboveZero,
    /// A Boolean with the opposite meaning. Whatever is not `true` counts as false.
    Not,
    /// A part of a URL, which several variables make up.
    UrlPart,
}

const ALL: &[Reader] = &[Reader::Worker, Reader::Program];
const WORKER: &[Reader] = &[Reader::Worker];
const PROGRAM: &[Reader] = &[Reader::Program];

/// Defines the table: our name, who reads the row, and CAF's names with their conversions.
macro_rules! settings {
    ($($own:literal $readers:ident: $($caf:ident $conversion:ident),*;)*) => {
        /// Every setting that CAF has, too.
        pub const SETTINGS: &[CafSetting] = &[$(CafSetting {
            own: $own,
            readers: $readers,
            caf: &[$((stringify!($caf), Conversion::$conversion)),*],
        }),*];
    };
}

settings! {
    "BROKER" ALL:
        CAF_RABBITMQ_PROTOCOL UrlPart, CAF_RABBITMQ_HOST UrlPart, CAF_RABBITMQ_PORT UrlPart,
        CAF_RABBITMQ_USERNAME UrlPart, CAF_RABBITMQ_PASSWORD UrlPart;
    "DATABASE" PROGRAM:
        JOB_SERVICE_DATABASE_HOST UrlPart, JOB_SERVICE_DATABASE_PORT UrlPart,
        JOB_SERVICE_DATABASE_NAME UrlPart, JOB_SERVICE_DATABASE_USERNAME UrlPart,
        JOB_SERVICE_DATABASE_PASSWORD UrlPart, JOB_SERVICE_DATABASE_APPNAME UrlPart;
    "NAME" WORKER: CAF_WORKER_NAME Same;
    "INPUT_PIPE" WORKER: CAF_WORKER_INPUT_QUEUE Same, CAF_WORKER_BASE_QUEUE_NAME AppendIn;
    "INPUT_PIPE" PROGRAM:
        CAF_WORKER_INPUT_QUEUE Same, CAF_WORKER_BASE_QUEUE_NAME AppendIn,
        CAF_WORKER_NAME AppendIn;
    "OUTPUT_PIPE" WORKER: CAF_WORKER_OUTPUT_QUEUE Same, CAF_WORKER_ERROR_QUEUE Same;
    "REJECT_PIPE" WORKER: CAF_WORKER_REJECT_QUEUE Same;
    "PAUSED_PIPE" ALL: CAF_WORKER_PAUSED_QUEUE Same;
    "TRACKING_PIPE" PROGRAM: CAF_TRACKING_PIPE Same;
    "CONCURRENCY" ALL: CAF_WORKER_THREADS Same;
    "PREFETCH" ALL: CAF_RABBITMQ_PREFETCH_BUFFER AddConcurrency;
    "ATTEMPTS" WORKER: CAF_WORKER_RETRY_LIMIT AddOne;
    "SERVICE_PATH" WORKER: CAF_APPNAME TrimSlash;
    "ZERO_PROGRESS" WORKER: CAF_WORKER_DISABLE_ZERO_PROGRESS_REPORTING Not;
    "MAX_PRIORITY" ALL: CAF_RABBITMQ_MAX_PRIORITY Same;
    "QUEUE_TYPE" ALL: CAF_RABBITMQ_QUEUE_TYPE Same;
    "LOG" ALL: CAF_LOG_LEVEL Lowercase;
    "CANCEL_BATCH" PROGRAM: CAF_CANCEL_JOBS_BATCH_LIMIT Same;
    "DELETE_BATCH" PROGRAM: CAF_DELETE_JOBS_BATCH_LIMIT Same;
    "JOB_TYPES" PROGRAM: CAF_JOB_SERVICE_JOB_TYPE_DEFINITIONS_DIR Same;
    "PAGE_SIZE" PROGRAM: CAF_JOB_SERVICE_PAGE_SIZE AboveZero;
    "PUBLIC_URL" PROGRAM: CAF_WEBSERVICE_URL Same;
    "STATUS_INTERVAL" PROGRAM: CAF_STATUS_CHECK_INTERVAL_SECONDS Same;
    "SUSPENDED_PARTITIONS" PROGRAM: CAF_JOB_SERVICE_SUSPENDED_PARTITIONS_REGEX Same;
}

/// Returns the rows of a reader.
pub fn settings(reader: Reader) -> impl Iterator<Item = &'static CafSetting> {
    SETTINGS
        .iter()
        .filter(move |setting| setting.readers.contains(&reader))
}

/// Returns CAF's names for one setting, given by our name without `BATCHWRIGHT_`.
pub fn names_of(reader: Reader, own: &str) -> &'static [(&'static str, Conversion)] {
    settings(reader)
        .find(|setting| setting.own == own)
        .map_or(&[], |setting| setting.caf)
}

/// Returns the value of the first of these variables that is set, converted; `None` if none is.
/// `concurrency` is the number of tasks that run at the same time.
///
/// # Errors
///
/// Returns an error if the conversion needs a number and the value is none.
pub fn value(
    variables: &Variables,
    caf: &[(&str, Conversion)],
    concurrency: u32,
) -> Result<Option<EnvValue>, SettingsError> {
    let Some((found, conversion)) = caf
        .iter()
        .find_map(|(name, conversion)| Some((variables.first(&[name])?, *conversion)))
    else {
        return Ok(None);
    };
    let number = || {
        found.value.parse::<u32>().map_err(|error| {
            SettingsError::of(&found.from, format!("is {:?}: {error}", found.value))
        })
    };
    let is_zero_or_less = || found.value.parse::<i64>().is_ok_and(|number| number <= 0);
    let value = match conversion {
        Conversion::AboveZero if is_zero_or_less() => return Ok(None),
        Conversion::Same | Conversion::UrlPart | Conversion::AboveZero => found.value.clone(),
        Conversion::AppendIn => format!("{}-in", found.value),
        Conversion::AddOne => number()?.saturating_add(1).to_string(),
        Conversion::AddConcurrency => number()?
            .saturating_add(concurrency)
            .clamp(1, 65535)
            .to_string(),
        Conversion::Lowercase => found.value.to_lowercase(),
        Conversion::Not => (!found.value.eq_ignore_ascii_case("true")).to_string(),
        Conversion::TrimSlash => found.value.trim_start_matches('/').to_owned(),
    };
    Ok(Some(EnvValue {
        value,
        from: found.from,
    }))
}

/// Returns the broker's URL from CAF's variables, or `None` if none of them is set. `host` is the
/// default host.
///
/// # Errors
///
/// Returns an error for a bad port or protocol, and for a file of secrets that cannot be read.
pub fn broker_url(variables: &Variables, host: &str) -> Result<Option<EnvValue>, SettingsError> {
    let (scheme, port) = match variables.get("CAF_RABBITMQ_PROTOCOL") {
        None | Some("amqp") => ("amqp", 5672),
        Some("amqps") => ("amqps", 5671),
        Some(other) => {
            return Err(SettingsError::of(
                "CAF_RABBITMQ_PROTOCOL",
                format!("is {other:?}; expected amqp or amqps"),
            ));
        }
    };
    variables.url(UrlParts {
        prefix: "CAF_RABBITMQ_",
        also: &[],
        scheme,
        host,
        port,
        username: "guest",
        password: "guest",
        path: "/%2f",
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn broker(all: &[(&str, &str)]) -> Result<Option<String>, String> {
        let variables = Variables::new(
            all.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let url = broker_url(&variables, "rabbitmq").map_err(|error| error.to_string())?;
        Ok(url.map(|url| url.value))
    }

    #[test]
    fn broker_url_is_composed_of_encoded_parts() {
        let odd = [
            ("CAF_RABBITMQ_PROTOCOL", "amqps"),
            ("CAF_RABBITMQ_HOST", "::1"),
            ("CAF_RABBITMQ_USERNAME", "a@b"),
            ("CAF_RABBITMQ_PASSWORD", "p:/?#%ü"),
        ];
        for (variables, expected) in [
            (&[("CAF_RABBITMQ_HOST", ""), ("CAF_OTHER", "x")][..], None),
            (
                &[("CAF_RABBITMQ_HOST", "mq")],
                Some("amqp://guest:guest@mq:5672/%2f"),
            ),
            (
                &[("CAF_RABBITMQ_USERNAME", "ann")],
                Some("amqp://ann:guest@rabbitmq:5672/%2f"),
            ),
            (
                &odd,
                Some("amqps://a%40b:p%3A%2F%3F%23%25%C3%BC@[::1]:5671/%2f"),
            ),
        ] {
            assert_eq!(broker(variables), Ok(expected.map(str::to_owned)));
        }
        for name in ["CAF_RABBITMQ_PORT", "CAF_RABBITMQ_PROTOCOL"] {
            let error = broker(&[(name, "http")]).unwrap_err();
            assert!(
                error.starts_with(&format!("the variable {name} is \"http\"")),
                "{error}"
            );
        }
    }

    #[test]
    fn password_of_the_broker_url_may_be_in_a_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "se cret").unwrap();
        let url = broker(&[
            ("CAF_RABBITMQ_PASSWORD_FILE", file.path().to_str().unwrap()),
            ("CAF_RABBITMQ_HOST", "mq"),
        ]);
        assert_eq!(
            url,
            Ok(Some("amqp://guest:se%20cret@mq:5672/%2f".to_owned()))
        );
    }

    #[test]
    fn each_reader_has_one_row_per_setting() {
        for reader in [Reader::Worker, Reader::Program] {
            let mut own: Vec<_> = settings(reader).map(|setting| setting.own).collect();
            let rows = own.len();
            own.sort_unstable();
            own.dedup();
            assert_eq!(own.len(), rows, "{reader:?}");
        }
    }
}
