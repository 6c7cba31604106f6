//! A network that fails on demand: a TCP proxy in front of a server.
//!
//! A test can do what networks do to connections: end them, refuse new ones, or, worst of all, keep
//! them open and carry nothing. A client that only waits never notices the last fault, so it needs
//! a heartbeat or a time limit of its own.
//!
//! What must stay true: bytes arrive in order and complete up to the end of a connection, or not at
//! all.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A proxy on a port of its own. Dropping it ends all connections and frees the port.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    _tasks: JoinSet<()>,
}

/// The state of the network. Connections are numbered in the order in which they are opened.
#[derive(Debug, Clone, Copy)]
struct Weather {
    mode: Mode,
    /// The number of the next connection.
    next: u64,
    /// Connections below this number are ended.
    cut: u64,
    /// Connections below this number no longer carry anything.
    forgotten: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    Refuse,
    BlackHole,
}

impl Weather {
    const fn carries(&self, connection: u64) -> bool {
        matches!(self.mode, Mode::Pass) && connection >= self.forgotten
    }
}

impl Proxy {
    /// Starts a proxy for `target`, which need not be running yet.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let weather = watch::Sender::new(Weather {
            mode: Mode::Pass,
            next: 0,
            cut: 0,
            forgotten: 0,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, target, weather.clone()));
        Ok(Self {
            address,
            weather,
            _tasks: tasks,
        })
    }

    /// Returns the address to connect to instead of the target.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all existing connections. New ones are treated as before.
    pub fn cut(&self) {
        self.weather
            .send_modify(|weather| weather.cut = weather.next);
    }

    /// Ends all existing connections, and every new one immediately.
    pub fn refuse(&self) {
        self.weather.send_modify(|weather| {
            *weather = Weather {
                mode: Mode::Refuse,
                cut: weather.next,
                ..*weather
            }
        });
    }

    /// Carries nothing in either direction, not even the end of a connection. New connections are
    /// still accepted.
    pub fn black_hole(&self) {
        self.weather
            .send_modify(|weather| weather.mode = Mode::BlackHole);
    }

    /// Carries nothing for existing connections ever again, as a firewall that has lost its state.
    /// New connections work.
    pub fn forget(&self) {
        self.weather.send_modify(|weather| {
            *weather = Weather {
                mode: Mode::Pass,
                forgotten: weather.next,
                ..*weather
            }
        });
    }

    /// Carries everything again, including the bytes that a black hole has held back.
    pub fn pass(&self) {
        self.weather
            .send_modify(|weather| weather.mode = Mode::Pass);
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, weather: watch::Sender<Weather>) {
    let mut connections = JoinSet::new();
    loop {
        // A client may be gone before it is accepted.
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let mut number = 0;
        weather.send_modify(|weather| {
            number = weather.next;
            weather.next += 1;
        });
        if weather.borrow().mode != Mode::Refuse {
            connections.spawn(carry(client, target, number, weather.subscribe()));
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Carries one connection until either side ends it or it is cut.
async fn carry(
    client: TcpStream,
    target: SocketAddr,
    number: u64,
    mut weather: watch::Receiver<Weather>,
) {
    let mut until_cut = weather.clone();
    let carried = async {
        clear(&mut weather, number).await?;
        let server = TcpStream::connect(target).await?;
        // The proxy must not delay small messages.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let ((from_client, to_client), (from_server, to_server)) =
            (client.into_split(), server.into_split());
        let (up, down) = (weather.clone(), weather.clone());
        tokio::try_join!(
            one_way(from_client, to_server, number, up),
            one_way(from_server, to_client, number, down)
        )
    };
    tokio::select! {
        // Client and server see for themselves how their connection ended.
        _ = carried => {}
        _ = until_cut.wait_for(|weather| number < weather.cut) => {}
    }
}

async fn one_way(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: u64,
    mut weather: watch::Receiver<Weather>,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        clear(&mut weather, number).await?;
        let length = from.read(&mut buffer).await?;
        // The state may have changed while there was nothing to read.
        clear(&mut weather, number).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..length]).await?;
    }
}

/// Waits until the network carries this connection.
async fn clear(weather: &mut watch::Receiver<Weather>, number: u64) -> io::Result<()> {
    weather
        .wait_for(|weather| weather.carries(number))
        .await
        .map(drop)
        .map_err(|_| io::ErrorKind::ConnectionAborted.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    /// Long enough for a message to arrive on the same machine.
    const SILENCE: Duration = Duration::from_millis(200);

    /// Starts a server that echoes everything.
    async fn echo() -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let (mut from, mut to) = stream.into_split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        (address, tasks)
    }

    async fn through(proxy: &Proxy) -> TcpStream {
        TcpStream::connect(proxy.address()).await.unwrap()
    }

    /// Sends a word and reads its echo; returns an error when the connection has ended.
    async fn says(stream: &mut TcpStream, word: &[u8]) -> io::Result<()> {
        stream.write_all(word).await?;
        hears(stream, word).await
    }

    async fn hears(stream: &mut TcpStream, word: &[u8]) -> io::Result<()> {
        let mut heard = vec![0; word.len()];
        timeout(LIMIT, stream.read_exact(&mut heard))
            .await
            .expect("no echo in time")?;
        assert_eq!(heard, word);
        Ok(())
    }

    async fn hears_nothing(stream: &mut TcpStream) {
        let mut byte = [0];
        assert!(
            timeout(SILENCE, stream.read(&mut byte)).await.is_err(),
            "something came through"
        );
    }

    #[tokio::test]
    async fn bytes_are_carried_both_ways_up_to_the_end() {
        let (server, _running) = echo().await;
        let proxy = Proxy::start(server).await.unwrap();
        let stream = through(&proxy).await;
        let (mut from, mut to) = stream.into_split();
        let said: Vec<u8> = (0..1_000_000_u32)
            .map(|n| u8::try_from(n % 251).unwrap())
            .collect();
        let saying = async {
            to.write_all(&said).await.unwrap();
            to.shutdown().await.unwrap();
        };
        let mut heard = Vec::new();
        let ((), length) = tokio::join!(saying, timeout(LIMIT, from.read_to_end(&mut heard)));
        assert_eq!(length.unwrap().unwrap(), said.len());
        assert!(heard == said);
    }

    #[tokio::test]
    async fn a_cut_ends_existing_connections_only() {
        let (server, _running) = echo().await;
        let proxy = Proxy::start(server).await.unwrap();
        let mut stream = through(&proxy).await;
        says(&mut stream, b"one").await.unwrap();
        proxy.cut();
        assert!(says(&mut stream, b"two").await.is_err());
        says(&mut through(&proxy).await, b"three").await.unwrap();
    }

    #[tokio::test]
    async fn refused_clients_can_connect_once_the_proxy_passes() {
        let (server, _running) = echo().await;
        let proxy = Proxy::start(server).await.unwrap();
        let mut stream = through(&proxy).await;
        says(&mut stream, b"one").await.unwrap();
        proxy.refuse();
        assert!(says(&mut stream, b"two").await.is_err());
        assert!(says(&mut through(&proxy).await, b"three").await.is_err());
        proxy.pass();
        says(&mut through(&proxy).await, b"four").await.unwrap();
    }

    #[tokio::test]
    async fn a_black_hole_keeps_connections_and_carries_nothing_until_it_passes() {
        let (server, _running) = echo().await;
        let proxy = Proxy::start(server).await.unwrap();
        let mut old = through(&proxy).await;
        says(&mut old, b"one").await.unwrap();
        proxy.black_hole();
        let mut new = through(&proxy).await;
        for stream in [&mut old, &mut new] {
            stream.write_all(b"two").await.unwrap();
            hears_nothing(stream).await;
        }
        proxy.pass();
        for stream in [&mut old, &mut new] {
            hears(stream, b"two").await.unwrap();
            says(stream, b"three").await.unwrap();
        }
    }

    #[tokio::test]
    async fn forgotten_connections_stay_silent_and_new_ones_work() {
        let (server, _running) = echo().await;
        let proxy = Proxy::start(server).await.unwrap();
        let mut old = through(&proxy).await;
        says(&mut old, b"one").await.unwrap();
        proxy.forget();
        old.write_all(b"two").await.unwrap();
        says(&mut through(&proxy).await, b"three").await.unwrap();
        proxy.pass();
        hears_nothing(&mut old).await;
    }

    #[tokio::test]
    async fn a_missing_server_ends_the_connection() {
        let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], crate::free_port())))
            .await
            .unwrap();
        assert!(says(&mut through(&proxy).await, b"one").await.is_err());
    }
}
