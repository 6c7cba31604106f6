//! Uploads: pieces in one order, within the limits, and as long as a job names them.

use std::time::Duration;

use contract::PartitionId;
use store::{
    Appended, Committed, Creation, DeletedUpload, JobRequest, Piece, Quota, UploadLimits,
    UploadRefusal,
};

use crate::fixture::{TestStore, create, request};

suite![
    pieces_follow_each_other_within_the_limits_until_the_upload_is_committed,
    uploads_are_bounded_in_number_and_in_room_however_few_bytes_they_have,
    an_upload_stays_as_long_as_a_job_names_it,
];

/// The room that an upload, and each of its pieces, takes beside its bytes.
const ENTRY: u64 = 5 * 1024;
const LIMITS: UploadLimits = UploadLimits {
    number_of_partition: 3,
    number_of_all: 4,
    ..UploadLimits::of_bytes(4 * ENTRY + 100, 6 * ENTRY + 150)
};
const DAY: Duration = Duration::from_hours(24);

fn partition(name: &str) -> PartitionId {
    PartitionId::parse(name).unwrap()
}

async fn add(store: &TestStore, of: &str, id: &str, first_byte: u64, bytes: u64) -> Appended {
    let piece = Piece {
        first_byte,
        bytes,
        name: format!("{first_byte}"),
        crc32: u32::MAX,
    };
    let of = partition(of);
    let added = store.append_to_upload(&of, id, &piece, LIMITS);
    added.await.unwrap()
}

async fn begin(store: &TestStore, of: &str, id: &str) {
    let begun = store
        .create_upload(&partition(of), (id, "key"), LIMITS)
        .await;
    assert_eq!(begun.unwrap().unwrap().bytes, 0);
}

async fn commit(store: &TestStore, of: &str, id: &str, bytes: u64, digest: &str) -> Committed {
    let of = partition(of);
    let committed = store.commit_upload(&of, id, (bytes, digest));
    committed.await.unwrap()
}

async fn pieces_follow_each_other_within_the_limits_until_the_upload_is_committed(
    mut store: TestStore,
) {
    let acme = partition("acme");
    begin(&store, "acme", "a").await;
    begin(&store, "acme", "b").await;
    begin(&store, "other", "c").await;
    assert!(matches!(add(&store, "acme", "a", 0, 60).await, Appended::Added(it) if it.bytes == 60));
    // A repeated request, and one of another partition.
    assert_eq!(
        add(&store, "acme", "a", 0, 60).await,
        Appended::Elsewhere(60)
    );
    assert_eq!(add(&store, "other", "a", 60, 1).await, Appended::Gone);
    let full = Appended::Full(Quota::Partition(3 * ENTRY + 60));
    assert_eq!(add(&store, "acme", "b", 0, 41).await, full);
    assert!(matches!(
        add(&store, "acme", "a", 60, 10).await,
        Appended::Added(_)
    ));
    let full = Appended::Full(Quota::All(5 * ENTRY + 70));
    assert_eq!(add(&store, "other", "c", 0, 81).await, full);
    // A piece of one byte takes a block of the disk, and a row.
    let full = Appended::Full(Quota::Partition(4 * ENTRY + 70));
    assert_eq!(add(&store, "acme", "b", 0, 1).await, full);
    store.reopen().await;
    let room = async || store.upload_room(&acme).await.unwrap();
    assert_eq!(room().await, (4 * ENTRY + 70, 5 * ENTRY + 70));
    let a = store.upload(&acme, "a").await.unwrap().unwrap();
    let piece = |first_byte: u64, bytes: u64| Piece {
        first_byte,
        bytes,
        name: format!("{first_byte}"),
        crc32: u32::MAX,
    };
    for (byte, expected) in [
        (0, vec![piece(0, 60), piece(60, 10)]),
        (59, vec![piece(0, 60), piece(60, 10)]),
        (60, vec![piece(60, 10)]),
    ] {
        let found = store.upload_pieces(a.number, byte, 10).await.unwrap();
        assert_eq!(found, expected);
    }
    assert_eq!(
        commit(&store, "acme", "a", 71, "d").await,
        Committed::OtherBytes(70)
    );
    assert!(matches!(
        commit(&store, "acme", "a", 70, "d").await,
        Committed::Committed(_)
    ));
    assert!(matches!(
        commit(&store, "acme", "a", 70, "d").await,
        Committed::Committed(_)
    ));
    assert_eq!(
        commit(&store, "acme", "a", 70, "e").await,
        Committed::OtherDigest("d".to_owned())
    );
    assert_eq!(add(&store, "acme", "a", 70, 1).await, Appended::Committed);
    let ids = |after, limit| {
        let found = store.uploads(&acme, after, limit);
        async { found.await.unwrap().into_iter().map(|it| it.id) }
    };
    assert!(ids(0, 10).await.eq(["a", "b"]));
    assert!(ids(0, 1).await.eq(["a"]));
    assert!(ids(a.number, 10).await.eq(["b"]));
    let deleted = store.delete_upload(&acme, "a").await.unwrap();
    assert_eq!(deleted, DeletedUpload::Deleted);
    let deleted = store.delete_upload(&acme, "a").await.unwrap();
    assert_eq!(deleted, DeletedUpload::Gone);
    // There is room at once; the blobs go when they can.
    assert_eq!(store.upload_room(&acme).await.unwrap(), (ENTRY, 2 * ENTRY));
    assert_eq!(store.doomed_uploads(DAY).await.unwrap(), [a.number]);
    store.forget_upload(a.number).await.unwrap();
    assert!(store.doomed_uploads(DAY).await.unwrap().is_empty());
    let pieces = store.upload_pieces(a.number, 0, 10).await.unwrap();
    assert!(pieces.is_empty());
}

async fn uploads_are_bounded_in_number_and_in_room_however_few_bytes_they_have(store: TestStore) {
    let create = async |of: &str, id: &str, limits| {
        let of = partition(of);
        let created = store.create_upload(&of, (id, "key"), limits);
        created.await.unwrap().map(drop)
    };
    let number = UploadLimits {
        number_of_partition: 2,
        number_of_all: 3,
        ..UploadLimits::of_bytes(u64::MAX, u64::MAX)
    };
    for (of, id, expected) in [
        ("a", "1", Ok(())),
        ("a", "2", Ok(())),
        ("a", "3", Err(Quota::Number(2))),
        ("b", "4", Ok(())),
        ("c", "5", Err(Quota::NumberOfAll(3))),
    ] {
        assert_eq!(create(of, id, number).await, expected, "{id}");
    }
    let room = UploadLimits::of_bytes(2 * ENTRY, 4 * ENTRY);
    for (of, id, expected) in [
        ("a", "6", Err(Quota::Partition(2 * ENTRY))),
        ("b", "7", Ok(())),
        ("c", "8", Err(Quota::All(4 * ENTRY))),
    ] {
        assert_eq!(create(of, id, room).await, expected, "{id}");
    }
    store.delete_upload(&partition("a"), "1").await.unwrap();
    assert_eq!(create("c", "9", room).await, Ok(()));
}

async fn an_upload_stays_as_long_as_a_job_names_it(store: TestStore) {
    let naming = |job: &str, id: &str| JobRequest {
        uploads: vec![id.to_owned()],
        ..request(job)
    };
    let acme = partition("acme");
    for (of, id) in [("acme", "a"), ("acme", "open"), ("other", "foreign")] {
        begin(&store, of, id).await;
        add(&store, of, id, 0, 1).await;
    }
    commit(&store, "acme", "a", 1, "d").await;
    commit(&store, "other", "foreign", 1, "d").await;
    for (id, refusal) in [
        ("open", UploadRefusal::Uncommitted("open".to_owned())),
        ("foreign", UploadRefusal::Unknown("foreign".to_owned())),
        ("none", UploadRefusal::Unknown("none".to_owned())),
    ] {
        let refused = create(&store, &naming("refused", id)).await;
        assert_eq!(refused, Creation::NoUpload(refusal));
    }
    assert!(!store.exists("refused").await);
    let (one, two) = (naming("one", "a"), naming("two", "a"));
    store.create_with(one).await;
    store.create_with(two).await;
    let found = store.upload(&acme, "a").await.unwrap().unwrap();
    assert_eq!(found.jobs, ["one", "two"]);
    let used = store.delete_upload(&acme, "a").await.unwrap();
    assert_eq!(used, DeletedUpload::Used("one".to_owned()));
    // However old it is; what no job names goes.
    store.delete("one").await;
    let numbers = async |unused| store.doomed_uploads(unused).await.unwrap();
    assert!(numbers(DAY).await.is_empty());
    let open = store.upload(&acme, "open").await.unwrap().unwrap();
    let foreign = store.upload(&partition("other"), "foreign").await;
    let foreign = foreign.unwrap().unwrap();
    let mut gone = numbers(Duration::ZERO).await;
    gone.sort_unstable();
    assert_eq!(gone, [open.number, foreign.number]);
    for number in gone {
        store.forget_upload(number).await.unwrap();
    }
    // It goes with its last job, however young it is.
    store.delete("two").await;
    assert_eq!(numbers(DAY).await, [found.number]);
    assert!(store.upload(&acme, "a").await.unwrap().is_none());
}
