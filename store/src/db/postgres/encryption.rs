//! Encrypted connections: the files that the URL names, and what to do when a connection cannot be
//! encrypted.
//!
//! The driver reads `sslmode`, `sslrootcert`, `sslcert` and `sslkey` of the URL. It ignores a file
//! without certificates, and its errors do not name a file.

use std::path::Path;

use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

/// The parameters of a URL that name files, and the end of the line that such a file begins with.
const FILES: [(&str, &str, &str); 3] = [
    ("sslrootcert", "certificate", "BEGIN CERTIFICATE-----"),
    ("sslcert", "certificate", "BEGIN CERTIFICATE-----"),
    ("sslkey", "unencrypted private key", " PRIVATE KEY-----"),
];

/// What the driver reports, and the remedy.
const REMEDIES: [(&str, &str); 6] = [
    (
        "invalid peer certificate: UnknownIssuer",
        "the server's certificate authority is not trusted; name the file of its certificate with sslrootcert=FILE in the URL",
    ),
    // Another authority has the same name.
    (
        "invalid peer certificate: BadSignature",
        "the server's certificate authority is not trusted; name the file of its certificate with sslrootcert=FILE in the URL",
    ),
    (
        "invalid peer certificate: certificate not valid for name",
        "the server's certificate is for another name than the host in the URL",
    ),
    (
        "invalid peer certificate",
        "the server's certificate is not valid",
    ),
    (
        "server does not support TLS",
        "sslmode in the URL demands an encrypted connection, and the server does not encrypt",
    ),
    (
        "KeyMismatch",
        "the file that sslkey names is not the key of the certificate that sslcert names",
    ),
];

/// Checks that the files that the URL names are there, and in PEM format.
pub fn check_files(options: &PgConnectOptions) -> Result<(), String> {
    for (name, file) in options.to_url_lossy().query_pairs() {
        let Some((_, what, begins)) = FILES.iter().find(|(known, ..)| *known == name) else {
            continue;
        };
        // The driver also takes the text of a certificate instead of the name of its file.
        let Some(file) = file.strip_prefix("file: ") else {
            continue;
        };
        let text = std::fs::read(Path::new(file)).map_err(|error| {
            format!("{name} in its URL names {file}, which cannot be read: {error}")
        })?;
        let text = String::from_utf8_lossy(&text);
        let has_one = text
            .lines()
            .any(|line| line.trim_end().ends_with(begins) && !line.contains("ENCRYPTED"));
        if !has_one {
            return Err(format!(
                "{name} in its URL names {file}, which contains no {what} in PEM format"
            ));
        }
    }
    Ok(())
}

/// Returns the remedy for an error of the driver, if the connection could not be encrypted.
pub fn remedy(error: &str) -> Option<&'static str> {
    REMEDIES
        .iter()
        .find_map(|(reported, remedy)| error.contains(reported).then_some(*remedy))
}
