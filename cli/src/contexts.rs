//! Contexts: job services that a person works with, each under a name, in a file of theirs.
//!
//! ```yaml
//! current: staging          # the context of commands that name none; may be left out
//! contexts:
//!   staging:
//!     url: https://batch.staging.example/job-service/v1
//!     partition: search
//!     tls-ca: staging.pem   # relative to this file
//!     token-file: staging.token
//! ```
//!
//! A context only says what flags would. One that the command line names comes before variables;
//! one that is chosen otherwise comes after them.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use framework::config::env::{EnvValue, Variables};
use framework::tls;
use serde::Deserialize;

/// The variable with the path of the file.
pub const FILE: &str = "BATCHWRIGHT_CONTEXTS";
/// The variable with the name of the context.
pub const NAME: &str = "BATCHWRIGHT_CONTEXT";
/// The variable with the token, which a context may have, too.
pub const TOKEN: &str = "BATCHWRIGHT_TOKEN";

/// The settings of a context, by the names of their variables.
pub type Settings = BTreeMap<&'static str, EnvValue>;

/// The content of the file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// The context of commands that name none.
    #[serde(default)]
    pub current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

/// How a job service is called.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Context {
    pub url: String,
    pub partition: Option<String>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
    tls_certificate: Option<PathBuf>,
    tls_key: Option<PathBuf>,
}

/// Returns the settings of the context with this name, or of the current one. Returns `None` if no
/// context is asked for.
pub fn settings(name: Option<&str>, variables: &Variables) -> Result<Option<Settings>, String> {
    let Some(file) = file(variables) else {
        return name.map_or(Ok(None), |name| {
            Err(format!(
                "there is no context {name:?}, because no file has contexts: set {FILE} to its path"
            ))
        });
    };
    if name.is_none() && !file.exists() {
        return Ok(None);
    }
    let contexts = read(&file)?;
    let Some(name) = name.or(contexts.current.as_deref()) else {
        return Ok(None);
    };
    let Some(context) = contexts.contexts.get(name) else {
        let known: Vec<&str> = contexts.contexts.keys().map(String::as_str).collect();
        let known = match known.len() {
            0 => "it has none".to_owned(),
            _ => format!("it has {}", known.join(", ")),
        };
        return Err(format!(
            "{} has no context {name:?}; {known}",
            file.display()
        ));
    };
    let from = format!("the context {name} of {}", file.display());
    context.settings(&file, &from).map(Some)
}

/// Returns the path of the file, whether it exists or not. Returns `None` if the person has no
/// home.
pub fn file(variables: &Variables) -> Option<PathBuf> {
    if let Some(file) = variables.get(FILE) {
        return Some(file.into());
    }
    let folder = variables.get("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || Some(Path::new(variables.get("HOME")?).join(".config"));
    Some(folder.or_else(home)?.join("batchwright/contexts.yaml"))
}

/// Reads the file.
pub fn read(file: &Path) -> Result<Contexts, String> {
    let path = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the contexts in {path} cannot be read: {error}"))?;
    // An empty file has no contexts.
    if text
        .lines()
        .all(|line| line.trim().is_empty() || line.starts_with('#'))
    {
        return Ok(Contexts::default());
    }
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    serde_saphyr::from_str_with_options(&text, options)
        .map_err(|error| format!("the contexts in {path} cannot be read: {error}"))
}

impl Context {
    fn settings(&self, file: &Path, from: &str) -> Result<Settings, String> {
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => Some(secret_in(file, token.clone())?),
            (None, Some(name)) => {
                let path = file.parent().unwrap_or(file).join(name);
                let text = std::fs::read_to_string(&path).map_err(|error| {
                    format!("the token in {} cannot be read: {error}", path.display())
                })?;
                Some(secret_in(&path, text)?)
            }
            (None, None) => None,
        };
        let beside = |path: &Option<PathBuf>| {
            let path = file.parent()?.join(path.as_ref()?);
            path.into_os_string().into_string().ok()
        };
        let values = [
            ("BATCHWRIGHT_URL", Some(self.url.clone())),
            ("BATCHWRIGHT_PARTITION", self.partition.clone()),
            (TOKEN, token),
            (tls::CA, beside(&self.tls_ca)),
            (tls::CERTIFICATE, beside(&self.tls_certificate)),
            (tls::KEY, beside(&self.tls_key)),
        ];
        let from = from.to_owned();
        Ok(values
            .into_iter()
            .filter_map(|(name, value)| {
                let (value, from) = (value?, from.clone());
                Some((name, EnvValue { value, from }))
            })
            .collect())
    }
}

/// Returns a secret that is in a file which only its owner may read.
fn secret_in(file: &Path, secret: String) -> Result<String, String> {
    let mode = std::fs::metadata(file).map_or(0, |known| known.permissions().mode());
    if mode & 0o077 != 0 {
        let file = file.display();
        return Err(format!(
            "{file} has a token, and others may read it; make it yours alone: chmod 600 {file}"
        ));
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::Cli;
    use crate::config::{self, Configuration};

    /// Returns the URL and the partition with which `list` calls the job service; `dead list` must
    /// do the same.
    fn called(file: &Path, arguments: &[&str]) -> Result<[String; 2], String> {
        let [list, dead] =
            [&["list"][..], &["dead", "list"]].map(|command| called_by(command, file, arguments));
        assert_eq!(list, dead, "{arguments:?}");
        list
    }

    fn called_by(command: &[&str], file: &Path, arguments: &[&str]) -> Result<[String; 2], String> {
        let path = file.to_str().unwrap().to_owned();
        let variables = Variables::new([(FILE.to_owned(), path)]);
        let arguments = ["batchwright"].iter().chain(command).chain(arguments);
        match config::read::<Cli>(arguments.map(Into::into), &variables) {
            Ok((_, Configuration { settings, .. })) => {
                let value = |name| settings.iter().find(|it| it.name == name).unwrap();
                Ok(["url", "partition"].map(|name| value(name).value.clone()))
            }
            Err(config::Refusal::Context(problem)) => Err(problem),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn context_says_what_flags_would_and_flags_come_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("contexts.yaml");
        fs::write(
            &file,
            "current: a\ncontexts:\n  a: {url: http://a/v1}\n  b:\n    url: http://b/v1\n    partition: search\n",
        )
        .unwrap();
        for (arguments, expected) in [
            (&[][..], ["http://a/v1", "default"]),
            (&["--context", "b"], ["http://b/v1", "search"]),
            (&["--context", "b", "-p", "x"], ["http://b/v1", "x"]),
            (
                &["--context=b", "--url", "http://own/v1"],
                ["http://own/v1", "search"],
            ),
        ] {
            let expected = Ok(expected.map(str::to_owned));
            assert_eq!(called(&file, arguments), expected, "{arguments:?}");
        }
    }

    #[test]
    fn unknown_context_and_bad_file_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("contexts.yaml");
        let refused = |arguments: &[&str]| called(&file, arguments).unwrap_err();
        assert!(called(&file, &[]).is_ok(), "there need be no file");
        let missing = refused(&["--context", "b"]);
        assert!(
            missing.contains("contexts.yaml cannot be read"),
            "{missing}"
        );
        fs::write(&file, "contexts: {a: {url: http://a}, z: {url: http://z}}").unwrap();
        let unknown = refused(&["--context", "b"]);
        assert!(
            unknown.ends_with("has no context \"b\"; it has a, z"),
            "{unknown}"
        );
        fs::write(&file, "contexts: {a: {uri: http://a}}").unwrap();
        let bad = refused(&[]);
        assert!(
            bad.contains("uri") && bad.contains("contexts.yaml"),
            "{bad}"
        );
    }

    /// Returns a setting of a command, if it has a value.
    fn setting_of(command: &[&str], file: &Path, arguments: &[&str], name: &str) -> Option<String> {
        let path = file.to_str().unwrap().to_owned();
        let variables = Variables::new([(FILE.to_owned(), path)]);
        let arguments = ["batchwright"].iter().chain(command).chain(arguments);
        let read = config::read::<Cli>(arguments.map(Into::into), &variables);
        let (_, Configuration { settings, .. }) = read.unwrap();
        let mut settings = settings.into_iter();
        settings.find(|it| it.name == name).map(|it| it.value)
    }

    #[test]
    fn token_of_a_context_is_refused_where_others_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let (file, secret) = (folder.path().join("contexts.yaml"), folder.path().join("t"));
        let set_mode = |file: &Path, mode| {
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (line, with_secret) in [("token: s", &file), ("token-file: t", &secret)] {
            fs::write(&secret, "s\n").unwrap();
            fs::write(&file, format!("contexts: {{a: {{url: http://a, {line}}}}}")).unwrap();
            set_mode(&file, 0o644);
            set_mode(with_secret, 0o640);
            let refused = called(&file, &["--context", "a"]).unwrap_err();
            assert!(refused.contains("others may read it"), "{refused}");
            set_mode(with_secret, 0o600);
            let tokens = |arguments: &[&str]| setting_of(&["list"], &file, arguments, "token");
            assert_eq!(tokens(&["--context", "a"]), Some("…".to_owned()), "{line}");
            // Another service does not get it.
            let elsewhere = ["--context", "a", "--url", "http://elsewhere/v1"];
            assert_eq!(tokens(&elsewhere), None, "{line}");
        }
    }
}
