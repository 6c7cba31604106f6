//! Encrypted connections, against a server of the test. Nothing here needs `RabbitMQ`.

use std::cell::RefCell;
use std::path::PathBuf;

use harness::tls::{Authority, Certificate, TlsServer, read_decrypted};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::tls::{Tls, TlsFiles};

/// The greeting of AMQP 0.9.1.
const GREETING: &[u8] = b"AMQP\x00\x00\x09\x01";

/// Starts to connect to a port of `localhost`.
fn connecting(scheme: &str, port: u16, files: &TlsFiles) -> Amqp {
    Amqp::connect(AmqpOptions {
        tls: Tls::load(files).unwrap(),
        ..AmqpOptions::new(format!("{scheme}://user:secret@localhost:{port}/%2f"))
    })
    .unwrap()
}

fn trusting(authority: &Authority) -> TlsFiles {
    TlsFiles {
        ca: Some(authority.file()),
        ..TlsFiles::default()
    }
}

/// Returns why there is no connection, once that is known.
async fn reason(amqp: Amqp) -> String {
    wait_for("the reason", async || match amqp.state() {
        BrokerState::Connecting(reason) if reason != "not tried yet" => Ok(reason),
        state => Err(format!("{state:?}")),
    })
    .await
}

/// Returns why there is no connection to this server.
async fn refused(server: &TlsServer, files: &TlsFiles) -> String {
    let amqp = connecting("amqps", server.address().unwrap().port(), files);
    tokio::select! {
        never = server.serve(b"") => match never {},
        reason = reason(amqp) => reason,
    }
}

#[tokio::test]
async fn first_bytes_of_an_amqps_connection_are_those_of_tls() {
    let authority = Authority::new().unwrap();
    let certificate = authority.issue("localhost").unwrap();
    let server = TlsServer::start(&certificate, None).await.unwrap();
    let port = server.address().unwrap().port();
    let _amqp = connecting("amqps", port, &trusting(&authority));
    let (wire, socket) = in_time("a client", server.greeting()).await.unwrap();
    // A handshake record, of the version that every version of TLS begins with.
    assert_eq!(wire[..3], [0x16, 0x03, 0x01], "{wire:x?}");
    let mut stream = in_time("the handshake", server.encrypt(socket))
        .await
        .unwrap();
    let greeting = in_time("the greeting", read_decrypted(&mut stream, GREETING.len())).await;
    assert_eq!(greeting.unwrap(), GREETING);
}

#[tokio::test]
async fn untrusted_or_wrong_certificate_is_refused_with_the_remedy() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    for (name, trusted, problem) in [
        (
            "localhost",
            &other,
            "certificate authority is not trusted; name the file of the authority's certificate in BATCHWRIGHT_TLS_CA",
        ),
        (
            "elsewhere",
            &authority,
            "certificate is for another name than localhost",
        ),
    ] {
        let certificate = authority.issue(name).unwrap();
        let server = TlsServer::start(&certificate, None).await.unwrap();
        let reason = refused(&server, &trusting(trusted)).await;
        assert!(reason.contains(problem), "{reason}");
        assert!(!reason.contains("secret"), "{reason}");
    }
}

#[tokio::test]
async fn amqps_to_a_port_without_tls_sends_neither_greeting_nor_password() {
    // What RabbitMQ responds to a greeting that it does not understand, and what a proxy does.
    for response in [GREETING, b""] {
        let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = plain.local_addr().unwrap().port();
        let received = RefCell::new(Vec::new());
        let serving = async {
            loop {
                let (mut socket, _) = plain.accept().await.unwrap();
                let mut bytes = vec![0; 3];
                // A client that gives up while it connects sends nothing.
                if socket.read_exact(&mut bytes).await.is_err() {
                    continue;
                }
                drop(socket.write_all(response).await);
                drop(socket.shutdown().await);
                drop(socket.read_to_end(&mut bytes).await);
                received.borrow_mut().push(bytes);
            }
        };
        let served = wait_for("the end of a client", async || {
            if received.borrow().is_empty() {
                Err("none".to_owned())
            } else {
                Ok(())
            }
        });
        let reason = reason(connecting("amqps", port, &TlsFiles::default()));
        let (reason, ()) = tokio::select! {
            never = serving => never,
            both = async { tokio::join!(reason, served) } => both,
        };
        assert!(
            reason.contains("does not speak TLS on this port"),
            "{reason}"
        );
        for bytes in received.into_inner() {
            assert_eq!(bytes[..3], [0x16, 0x03, 0x01], "{bytes:x?}");
            for plaintext in [&b"AMQP"[..], b"secret"] {
                let is_there = bytes
                    .windows(plaintext.len())
                    .any(|window| window == plaintext);
                assert!(!is_there, "{bytes:x?}");
            }
        }
    }
}

#[tokio::test]
async fn client_shows_its_certificate_to_a_server_that_demands_one() {
    let authority = Authority::new().unwrap();
    let certificate = authority.issue("localhost").unwrap();
    let client = authority.issue("client").unwrap();
    let server = TlsServer::start(&certificate, Some(&authority))
        .await
        .unwrap();
    let port = server.address().unwrap().port();
    let files = TlsFiles {
        certificate: Some(client.certificate.clone()),
        key: Some(client.key.clone()),
        ..trusting(&authority)
    };
    let _amqp = connecting("amqps", port, &files);
    let mut stream = in_time("the handshake", server.accept()).await.unwrap();
    let greeting = in_time("the greeting", read_decrypted(&mut stream, GREETING.len())).await;
    assert_eq!(greeting.unwrap(), GREETING);
    let shown = stream.get_ref().1.peer_certificates().unwrap();
    assert_eq!(shown, client.der().unwrap());

    let reason = refused(&server, &trusting(&authority)).await;
    assert!(reason.contains("if it demands a client certificate, set BATCHWRIGHT_TLS_CERTIFICATE and BATCHWRIGHT_TLS_KEY"), "{reason}");
}

#[test]
fn file_that_cannot_be_used_is_refused_by_setting_and_path() {
    let authority = Authority::new().unwrap();
    let Certificate { certificate, key } = authority.issue("client").unwrap();
    let other = authority.issue("other").unwrap();
    let missing = PathBuf::from("/no/such.pem");
    let (none, some) = (None, |file: &PathBuf| Some(file.clone()));
    for (ca, certificate, key, problem) in [
        (
            some(&missing),
            none.clone(),
            none.clone(),
            "BATCHWRIGHT_TLS_CA names /no/such.pem, which cannot be read: No such file".to_owned(),
        ),
        (
            some(&key),
            none.clone(),
            none.clone(),
            format!(
                "BATCHWRIGHT_TLS_CA names {}, which contains no certificate in PEM format",
                key.display()
            ),
        ),
        (
            none.clone(),
            some(&missing),
            some(&key),
            "BATCHWRIGHT_TLS_CERTIFICATE names /no/such.pem, which cannot be read".to_owned(),
        ),
        (
            none.clone(),
            some(&certificate),
            none.clone(),
            "BATCHWRIGHT_TLS_CERTIFICATE is set without BATCHWRIGHT_TLS_KEY; set both".to_owned(),
        ),
        (
            none.clone(),
            none.clone(),
            some(&key),
            "BATCHWRIGHT_TLS_KEY is set without BATCHWRIGHT_TLS_CERTIFICATE; set both".to_owned(),
        ),
        (
            none.clone(),
            some(&certificate),
            some(&certificate),
            format!(
                "BATCHWRIGHT_TLS_KEY names {}, which contains no unencrypted private key",
                certificate.display()
            ),
        ),
        (
            none.clone(),
            some(&certificate),
            some(&other.key),
            format!(
                "BATCHWRIGHT_TLS_KEY names {}, which is not the key of the certificate in {}",
                other.key.display(),
                certificate.display()
            ),
        ),
    ] {
        let refused = Tls::load(&TlsFiles {
            ca,
            certificate,
            key,
        })
        .unwrap_err()
        .to_string();
        assert!(refused.contains(&problem), "{refused}\n{problem}");
    }
}
