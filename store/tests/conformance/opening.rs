//! Opening a store by its URL.

use futures_util::future::join_all;
use harness::in_time;
use harness::tls::{Authority, TlsServer, read_decrypted};
use store::{Creation, EventKind, Store, StoreOptions};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{TestStore, create, event, request};

suite![a_database_that_has_a_migration_of_the_next_build_is_opened];

async fn a_database_that_has_a_migration_of_the_next_build_is_opened(mut store: TestStore) {
    let incarnation = store.create("j").await;
    store.apply_migration_of_the_next_build().await;
    store.reopen().await;
    assert_eq!(store.incarnation("j").await, incarnation);
}

#[tokio::test]
async fn unusable_url_is_reported_with_the_reason_and_without_the_password() {
    let error = async |url: &str| Store::open(url).await.unwrap_err();
    let unknown = error("mysql://ann:secret@db/jobs").await;
    assert!(matches!(unknown, store::StoreError::Unusable { .. }));
    let text = unknown.to_string();
    assert!(
        text.contains("mysql://ann:***@db/jobs")
            && text.contains("postgres://")
            && text.contains("sqlite:"),
        "{text}"
    );
    let unreachable = error("postgres://ann:secret@127.0.0.1:1/jobs").await;
    assert!(
        matches!(unreachable, store::StoreError::Unavailable(_)),
        "{unreachable:?}"
    );
    let text = unreachable.to_string();
    assert!(
        text.contains("postgres://ann:***@127.0.0.1:1/jobs") && text.contains("refused"),
        "{text}"
    );
    assert!(matches!(
        error("sqlite:/no/such/folder/x.db").await,
        store::StoreError::Unusable { .. }
    ));
    assert!(matches!(
        error("sqlite:").await,
        store::StoreError::Unusable { .. }
    ));
    assert!(matches!(
        error("postgres://ann@db:port/jobs").await,
        store::StoreError::Unusable { .. }
    ));
}

/// Reads the question whether the server encrypts, which every version of the protocol begins with.
async fn ssl_request(socket: &mut TcpStream) {
    let mut request = [0; 8];
    in_time("the question", socket.read_exact(&mut request))
        .await
        .unwrap();
    assert_eq!(request, [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]);
}

#[tokio::test]
async fn verify_full_sends_nothing_to_a_server_that_does_not_encrypt() {
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = plain.local_addr().unwrap().port();
    let url = format!("postgres://ann:secret@localhost:{port}/jobs?sslmode=verify-full");
    let serving = async {
        let (mut socket, _) = plain.accept().await.unwrap();
        ssl_request(&mut socket).await;
        socket.write_all(b"N").await.unwrap();
        let mut rest = Vec::new();
        in_time("the end", socket.read_to_end(&mut rest))
            .await
            .unwrap();
        rest
    };
    let (rest, opened) = tokio::join!(serving, Store::open(&url));
    assert_eq!(rest, b"");
    let refused = opened.unwrap_err().to_string();
    assert!(
        refused.contains("demands an encrypted connection, and the server does not encrypt"),
        "{refused}"
    );
}

#[tokio::test]
async fn verify_full_logs_in_only_at_a_server_with_a_trusted_certificate_of_its_name() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    for (name, trusted, problem) in [
        (
            "localhost",
            &other,
            Some(
                "certificate authority is not trusted; name the file of its certificate with sslrootcert=FILE",
            ),
        ),
        (
            "elsewhere",
            &authority,
            Some("certificate is for another name than the host in the URL"),
        ),
        ("localhost", &authority, None),
    ] {
        let certificate = authority.issue(name).unwrap();
        let server = TlsServer::start(&certificate, None).await.unwrap();
        let url = format!(
            "postgres://ann:secret@localhost:{}/jobs?sslmode=verify-full&sslrootcert={}",
            server.address().unwrap().port(),
            trusted.file().display()
        );
        let serving = async {
            let (_, mut socket) = in_time("a client", server.greeting()).await.unwrap();
            ssl_request(&mut socket).await;
            socket.write_all(b"S").await.unwrap();
            let mut stream = server.encrypt(socket).await?;
            // The length of the first message, and the version of the protocol.
            read_decrypted(&mut stream, 8).await
        };
        let (first, opened) = tokio::join!(serving, Store::open(&url));
        let refused = opened.unwrap_err().to_string();
        assert!(!refused.contains("secret"), "{refused}");
        if let Some(problem) = problem {
            assert!(refused.contains(problem), "{refused}");
            assert!(first.is_err(), "{first:?}");
        } else {
            assert_eq!(first.unwrap()[4..], [0, 3, 0, 0], "{refused}");
        }
    }
}

#[tokio::test]
async fn file_of_a_certificate_that_cannot_be_used_is_refused_by_name() {
    let authority = Authority::new().unwrap();
    let certificate = authority.issue("client").unwrap();
    let key = certificate.key.display();
    for (parameter, problem) in [
        (
            "sslrootcert=/no/such.pem".to_owned(),
            "sslrootcert in its URL names /no/such.pem, which cannot be read".to_owned(),
        ),
        (
            format!("sslrootcert={key}"),
            format!("names {key}, which contains no certificate in PEM format"),
        ),
        (
            format!("sslcert={key}"),
            "contains no certificate in PEM format".to_owned(),
        ),
        (
            "sslkey=/no/such.pem".to_owned(),
            "sslkey in its URL names /no/such.pem, which cannot be read".to_owned(),
        ),
    ] {
        let url = format!("postgres://ann:secret@127.0.0.1:1/jobs?sslmode=verify-full&{parameter}");
        let refused = Store::open(&url).await.unwrap_err();
        assert!(
            matches!(refused, store::StoreError::Unusable { .. }),
            "{refused:?}"
        );
        let text = refused.to_string();
        assert!(
            text.contains(&problem) && !text.contains("secret"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn session_has_the_application_name_of_the_url_or_batchwright() {
    let database = harness::postgres().await.unwrap();
    let url = &database.url;
    for (given, name) in [
        (url.clone(), "batchwright"),
        (
            format!("{url}?application_name=the+importer"),
            "the importer",
        ),
    ] {
        let store = Store::open(&given).await.unwrap();
        let named = format!(
            "select count(*) > 0 from pg_stat_activity where datname = current_database() and application_name = '{name}'"
        );
        assert_eq!(harness::psql(url, &[&named]).await.unwrap(), "t", "{name}");
        store.close().await;
    }
}

/// A user who migrates from the CAF Job Service can keep the same database.
#[tokio::test]
async fn shares_a_database_with_caf_tables_and_leaves_them_alone() {
    let database = harness::postgres().await.unwrap();
    let url = &database.url;
    let theirs = "create table job (job_id varchar(48)); insert into job values ('theirs'); create table task_1 (subtask_id int); \
                  create table label (label varchar(255))";
    harness::psql(url, &[theirs]).await.unwrap();
    // All open at once, as when the processes of a new system start.
    let stores = join_all((0..4).map(|_| Store::open(url))).await;
    let store = stores.into_iter().map(Result::unwrap).next_back().unwrap();
    let Creation::Created(incarnation) = create(&store, &request("ours")).await else {
        panic!("it is new")
    };
    store
        .record(&[event(&incarnation, "1", EventKind::Complete)])
        .await
        .unwrap();
    assert_eq!(store.task_table_size().await.unwrap().tables, 1);
    assert_eq!(
        harness::psql(url, &["select job_id from public.job"])
            .await
            .unwrap(),
        "theirs"
    );
}

/// Returns the address of the server in a URL.
async fn address_of(url: &str) -> std::net::SocketAddr {
    let authority = url.split("//").nth(1).unwrap().split('/').next().unwrap();
    let host = authority.split('@').next_back().unwrap();
    tokio::net::lookup_host(host).await.unwrap().next().unwrap()
}

#[tokio::test]
async fn waits_for_an_unavailable_database_and_reports_its_availability() {
    let url = harness::postgres().await.unwrap().url;
    let server = address_of(&url).await;
    let proxy = harness::Proxy::start(server).await.unwrap();
    proxy.refuse();
    let authority = url.split("//").nth(1).unwrap().split('/').next().unwrap();
    let through = authority
        .rsplit_once('@')
        .map_or(proxy.address().to_string(), |(user, _)| {
            format!("{user}@{}", proxy.address())
        });
    let store =
        Store::open_when_possible(&url.replace(authority, &through), StoreOptions::default())
            .await
            .unwrap();
    let unavailable = store.ping().await.unwrap_err();
    assert!(
        matches!(unavailable, store::StoreError::Unavailable(_)),
        "{unavailable:?}"
    );
    assert!(matches!(
        &*store.availability().borrow(),
        store::Availability::Unavailable(_)
    ));
    let mut woken = store.outbox_signal();
    woken.mark_unchanged();
    proxy.pass();
    let mut availability = store.availability();
    availability
        .wait_for(|availability| *availability == store::Availability::Available)
        .await
        .unwrap();
    store.ping().await.unwrap();
    woken.changed().await.unwrap();

    // The open store also notices and reports the loss of the database.
    proxy.refuse();
    availability
        .wait_for(|availability| matches!(availability, store::Availability::Unavailable(_)))
        .await
        .unwrap();
    proxy.pass();
    availability
        .wait_for(|availability| *availability == store::Availability::Available)
        .await
        .unwrap();
    store.ping().await.unwrap();
    store.close().await;

    let never = Store::open_when_possible("postgres://ann@db:port/jobs", StoreOptions::default())
        .await
        .unwrap_err();
    assert!(
        matches!(never, store::StoreError::Unusable { .. }),
        "{never:?}"
    );
}
