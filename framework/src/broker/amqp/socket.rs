//! A connection whose socket we can shut down.
//!
//! The client library reads and writes on a thread of its own. The thread ends when the connection is closed in order,
//! or when the operating system reports that it is broken. A silent peer causes neither: each attempt to connect to it,
//! and each abandoned connection, would leave a thread and a socket behind forever. So we keep a handle of each socket,
//! and shut the socket down when the connection is no longer used.

use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};

use lapin::tcp::TLSConfig;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};

/// The sockets of one connection. Dropping this value shuts them down, which ends the connection for both sides.
#[derive(Default)]
pub struct Sockets(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    open: Vec<TcpStream>,
    is_closed: bool,
}

impl Sockets {
    /// Connects. If the returned future is dropped halfway, dropping the `Sockets` still closes everything.
    pub async fn connect(
        &self,
        uri: AMQPUri,
        properties: ConnectionProperties,
    ) -> lapin::Result<Connection> {
        let state = Arc::clone(&self.0);
        let runtime = lapin::runtime::default_runtime()?;
        // The closure is written in place, because the type of its stream cannot be named outside.
        let connecting = Connection::connector(
            uri,
            runtime,
            async move |uri, runtime| {
                let address =
                    runtime.to_socket_addrs((uri.authority.host.clone(), uri.authority.port));
                let stream = AsyncTcpStream::connect(&runtime, address).await?;
                let AsyncTcpStream::Plain(socket) = &stream else {
                    return Err(std::io::Error::from(ErrorKind::Unsupported).into());
                };
                keep(
                    &state,
                    socket.get_ref().as_fd().try_clone_to_owned()?.into(),
                )?;
                match uri.scheme {
                    AMQPScheme::AMQP => Ok(stream),
                    AMQPScheme::AMQPS => Ok(stream
                        .into_tls(&uri.authority.host, TLSConfig::default())
                        .await?),
                }
            },
            properties,
        );
        connecting.await
    }
}

/// Keeps the handle of a socket. Fails if the `Sockets` were dropped meanwhile.
fn keep(state: &Mutex<State>, socket: TcpStream) -> std::io::Result<()> {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    if state.is_closed {
        return Err(ErrorKind::ConnectionAborted.into());
    }
    state.open.push(socket);
    Ok(())
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_closed = true;
        for socket in state.open.drain(..) {
            // Fails for a socket that is closed already.
            drop(socket.shutdown(Shutdown::Both));
        }
    }
}
