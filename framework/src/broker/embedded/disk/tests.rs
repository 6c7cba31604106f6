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
            sent: 0,
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
            sent: 0,
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
fn delayed_messages_wait_no_longer_than_their_delay_if_the_clock_is_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let open_at = |now| {
        let (disk, recovered) = Disk::open(&file, Probe::of(&file), 0, now).unwrap();
        let due = disk.due(i64::MAX, 10, 1000).unwrap();
        let due: Vec<_> = due.iter().map(|Delayed { due, .. }| *due).collect();
        (disk, due, recovered.next_due)
    };
    let due = |at, delay| Due { at, delay };

    let delayed = [due(DAY + 5000, 5000), due(DAY + 7000, 8000)];
    let (mut disk, ..) = open_at(DAY);
    let rows = (1..).zip(delayed).map(|(id, due)| Delayed {
        id,
        due,
        pipe: 1,
        headers: Headers::default(),
        body: Bytes::new(),
    });
    let mut batch = Batch {
        delayed: rows.collect(),
        ..Batch::default()
    };
    disk.commit(&mut batch).unwrap();
    disk.close();
    for (now, first, second) in [
        (DAY, DAY + 5000, DAY + 7000),
        (DAY - 1000, DAY + 4000, DAY + 7000),
        (0, 5000, 8000),
    ] {
        let (disk, found, next) = open_at(now);
        disk.close();
        assert_eq!(found, [due(first, 5000), due(second, 8000)]);
        assert_eq!(next, Some(first));
    }
}
