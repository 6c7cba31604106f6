//! The file on a full disk, and its size.

use super::*;

const DAY: i64 = 86_400_000;

#[test]
fn batch_refused_by_a_full_disk_is_committed_whole_later() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let (mut disk, recovered) = Disk::open(&file, Probe::of(&file), 0, 0).unwrap();
    assert!(recovered.pipes.is_empty());
    disk.limit_pages(20);
    let first = rows_of(1).0;
    let messages = (1..=100)
        .map(|position| Message {
            id: first + position,
            delivery_count: 0,
            sent: None,
            headers: Headers::default(),
            body: vec![0; 4000].into(),
        })
        .collect();
    let marks = vec![Mark {
        number: 1,
        handed_out: first + 2,
        stored: 100,
    }];
    let mut batch = Batch {
        pipes: vec![(1, "p".into())],
        messages,
        marks,
        ..Batch::default()
    };
    for _ in 0..2 {
        disk.commit(&mut batch).unwrap_err();
        assert!(disk.page(1, first, 1000, usize::MAX).unwrap().is_empty());
    }
    disk.limit_pages(10_000);
    disk.commit(&mut batch).unwrap();
    disk.close();

    let (disk, recovered) = Disk::open(&file, Probe::of(&file), 0, 0).unwrap();
    let [
        StoredPipe {
            stored: 100, last, ..
        },
    ] = recovered.pipes[..]
    else {
        panic!("{recovered:?}")
    };
    assert_eq!(last, first + 100);
    let counts: Vec<u32> = disk
        .page(1, first, 4, usize::MAX)
        .unwrap()
        .into_iter()
        .map(|message| message.delivery_count)
        .collect();
    assert_eq!(counts, [1, 1, 0, 0]);
}

#[test]
fn log_needs_no_memory_that_processes_share() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    for _ in 0..2 {
        let (disk, _) = Disk::open(&file, Probe::of(&file), 0, 0).unwrap();
        assert!(!folder.path().join("broker.db-shm").exists());
        disk.close();
    }
}

/// Stores 8 MB of messages, deletes them, and gives back all that can be given back.
fn store_and_delete(disk: &mut Disk) {
    let first = rows_of(1).0;
    let messages: Vec<Message> = (1..=512)
        .map(|position| Message {
            id: first + position,
            delivery_count: 0,
            sent: None,
            headers: Headers::default(),
            body: vec![0; 16_000].into(),
        })
        .collect();
    let mut batch = Batch {
        settled: Vec::new(),
        messages,
        ..Batch::default()
    };
    disk.commit(&mut batch).unwrap();
    let mut batch = Batch {
        settled: batch.messages.iter().map(|message| message.id).collect(),
        ..Batch::default()
    };
    disk.commit(&mut batch).unwrap();
    while disk.give_back(0).unwrap() {}
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file).unwrap().len()
}

#[test]
fn space_of_deleted_messages_is_given_back_to_the_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let (mut disk, _) = Disk::open(&file, Probe::of(&file), 0, 0).unwrap();
    store_and_delete(&mut disk);
    assert!(size(&file) < 100_000, "{}", size(&file));
}

#[test]
fn file_of_an_older_build_shrinks_once_it_contains_little() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let older = Connection::open(&file).unwrap();
    older.execute_batch(SCHEMA).unwrap();
    drop(older);
    for _ in 0..2 {
        let (mut disk, _) = Disk::open(&file, Probe::of(&file), 0, 0).unwrap();
        store_and_delete(&mut disk);
        assert!(size(&file) < 100_000, "{}", size(&file));
        disk.close();
    }
}

#[test]
fn due_messages_are_read_up_to_a_number_of_bytes_and_one_at_least() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let (mut disk, _) = Disk::open(&file, Probe::of(&file), 0, 0).unwrap();
    let delayed = (1..=5).map(|id| Delayed {
        id,
        due: Due { at: id, delay: 0 },
        pipe: 1,
        headers: Headers::default(),
        body: vec![0; 1000].into(),
    });
    let mut batch = Batch {
        delayed: delayed.collect(),
        ..Batch::default()
    };
    disk.commit(&mut batch).unwrap();
    let ids = |bytes| {
        let due = disk.due(4, 10, bytes).unwrap();
        due.iter().map(|delayed| delayed.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(1), [1]);
    assert_eq!(ids(1500), [1, 2]);
    assert_eq!(ids(1_000_000), [1, 2, 3, 4]);
}

#[test]
fn delayed_messages_of_an_older_build_wait_no_longer_than_before() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let older_build = |row| {
        let older = Connection::open(&file).unwrap();
        older.execute_batch(SCHEMA).unwrap();
        older.execute_batch(row).unwrap();
    };
    let open_at = |now| {
        let (disk, recovered) = Disk::open(&file, Probe::of(&file), 0, now).unwrap();
        let due = disk.due(i64::MAX, 10, 1000).unwrap();
        disk.close();
        let due: Vec<_> = due.iter().map(|Delayed { due, .. }| *due).collect();
        (due, recovered.next_due)
    };
    let due = |at, delay| Due { at, delay };

    older_build("INSERT INTO delayed (id, due, pipe, body) VALUES (1, 86405000, 1, x'')");
    let first = due(DAY + 5000, 5000);
    assert_eq!(open_at(DAY), (vec![first], Some(DAY + 5000)));
    // It can write to the file again, and the clock is set back twice.
    older_build("INSERT INTO delayed (id, due, pipe, body) VALUES (2, 86407000, 1, x'')");
    let (first, second) = (due(DAY + 4000, 5000), due(DAY + 7000, 8000));
    assert_eq!(open_at(DAY - 1000), (vec![first, second], Some(DAY + 4000)));
    let (first, second) = (due(5000, 5000), due(8000, 8000));
    assert_eq!(open_at(0), (vec![first, second], Some(5000)));
}
