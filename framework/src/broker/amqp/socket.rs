//! A connection whose socket we can take away.
//!
//! The client library reads and writes on a thread of its own, which ends when the connection has been closed in order or the
//! system says that it is broken. A peer that has gone silent does neither: each attempt to connect to it, and each connection that
//! was given up, would leave a thread and a socket behind for ever. So we keep a handle of each socket, and shut it down when
//! we are done with it.

use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};

use lapin::tcp::TLSConfig;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};

/// Handles of a connection's sockets. Dropping it ends the connection for both sides.
#[derive(Default)]
pub struct Sockets(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    open: Vec<TcpStream>,
    is_over: bool,
}

impl Sockets {
    /// Connects; also when this is dropped in the middle, nothing is left behind once the sockets are dropped.
    pub async fn connect(
        &self,
        uri: AMQPUri,
        properties: ConnectionProperties,
    ) -> lapin::Result<Connection> {
        let state = Arc::clone(&self.0);
        let runtime = lapin::runtime::default_runtime()?;
        // In place, because only here the type of its socket is known, which has no name of ours.
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

/// Keeps the handle of a socket, unless it is too late.
fn keep(state: &Mutex<State>, socket: TcpStream) -> std::io::Result<()> {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    if state.is_over {
        return Err(ErrorKind::ConnectionAborted.into());
    }
    state.open.push(socket);
    Ok(())
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_over = true;
        for socket in state.open.drain(..) {
            // One that has been closed in order is none any more.
            drop(socket.shutdown(Shutdown::Both));
        }
    }
}
