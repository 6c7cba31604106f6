//! Certificates, and a server that speaks TLS or should.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::unique;

/// A certificate authority of one test. Its files, in PEM format, are deleted when this is dropped.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// The files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct Certificate {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Certificate {
    /// Returns the certificate as it is on the wire.
    pub fn der(&self) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let certificates = CertificateDer::pem_file_iter(&self.certificate)?;
        Ok(certificates.collect::<Result<_, _>>()?)
    }
}

impl Authority {
    /// Makes an authority.
    pub fn new() -> anyhow::Result<Self> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        // Authorities of the same name would be taken for each other.
        let name = unique("authority");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("ca.pem"), issuer.pem())?;
        Ok(Self { issuer, folder })
    }

    /// Returns the file of the authority's own certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Issues a certificate for a host name or an address.
    pub fn issue(&self, name: &str) -> anyhow::Result<Certificate> {
        let key = KeyPair::generate()?;
        let certificate =
            CertificateParams::new(vec![name.to_owned()])?.signed_by(&key, &self.issuer)?;
        let inside = |what: &str| self.folder.path().join(format!("{name}-{what}.pem"));
        let files = Certificate {
            certificate: inside("certificate"),
            key: inside("key"),
        };
        std::fs::write(&files.certificate, certificate.pem())?;
        std::fs::write(&files.key, key.serialize_pem())?;
        Ok(files)
    }
}

/// A server on a free port of 127.0.0.1 that speaks TLS with a certificate.
pub struct TlsServer {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl std::fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}

impl TlsServer {
    /// Starts to listen. With `clients`, each client must have a certificate of this authority.
    pub async fn start(
        certificate: &Certificate,
        clients: Option<&Authority>,
    ) -> anyhow::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.issuer.der().clone())?;
                config.with_client_cert_verifier(
                    WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build()?,
                )
            }
        };
        let key = PrivateKeyDer::from_pem_file(&certificate.key)?;
        Ok(Self {
            listener: TcpListener::bind("127.0.0.1:0").await?,
            acceptor: Arc::new(config.with_single_cert(certificate.der()?, key)?).into(),
        })
    }

    /// Returns the address of the server.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Waits for a client. Returns the first bytes that it sends, as they are on the wire, and the
    /// connection.
    pub async fn greeting(&self) -> anyhow::Result<(Vec<u8>, TcpStream)> {
        let (socket, _) = self.listener.accept().await?;
        let mut bytes = vec![0; 8];
        let read = socket.peek(&mut bytes).await?;
        bytes.truncate(read);
        Ok((bytes, socket))
    }

    /// Waits for a client and encrypts the connection.
    pub async fn accept(&self) -> anyhow::Result<TlsStream<TcpStream>> {
        let (socket, _) = self.listener.accept().await?;
        self.encrypt(socket).await
    }

    /// Sends each client this response to its first bytes, one client after the other, until the
    /// future is dropped.
    pub async fn serve(&self, response: &[u8]) -> Infallible {
        loop {
            // A client that does not trust the server breaks the connection off.
            if let Ok(mut stream) = self.accept().await {
                // HTTP clients take a response before their request for an error.
                drop(stream.read(&mut [0; 4096]).await);
                drop(stream.write_all(response).await);
                drop(stream.shutdown().await);
            }
        }
    }

    /// Encrypts a connection.
    pub async fn encrypt(&self, socket: TcpStream) -> anyhow::Result<TlsStream<TcpStream>> {
        let accepted = self.acceptor.accept(socket).await;
        accepted.context("the handshake of TLS")
    }
}

/// Reads this many bytes of an encrypted connection.
pub async fn read_decrypted(
    stream: &mut TlsStream<TcpStream>,
    count: usize,
) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}
