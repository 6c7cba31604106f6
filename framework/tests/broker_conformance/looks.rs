//! What brokers tell of pipes without changing them, and the signs of life that they carry.

use std::sync::Arc;
use std::time::Duration;

use framework::broker::{Announcements, Broker, Event, Flow, Outgoing, Queries, Unanswered};
use futures_util::future::join_all;
use harness::{PATIENCE, in_time, wait_for};

use crate::{TestBroker, next, next_numbers, pipe};

pub async fn looking_at_a_pipe_counts_and_changes_nothing(fixture: TestBroker) {
    let (pipe, broker) = (pipe(), &fixture.broker);
    assert_eq!(broker.look(&pipe).await.unwrap(), None);
    assert_eq!(broker.look(&pipe).await.unwrap(), None);
    fixture.publish(&pipe, 0..5).await;
    let later = Outgoing {
        delay: Some(Duration::from_mins(10)),
        ..Outgoing::new(Arc::clone(&pipe), "9")
    };
    broker.publish(later).await.unwrap();
    let seen = async |messages: u64, consumers: u64| {
        wait_for("the state of the pipe", async || {
            match broker.look(&pipe).await.unwrap() {
                Some(state) if (state.messages, state.consumers) == (messages, Some(consumers)) => {
                    Ok(state)
                }
                state => Err(format!("{state:?}")),
            }
        })
        .await
    };
    let state = seen(5, 0).await;
    assert!([None, Some(1)].contains(&state.delayed), "{state:?}");
    let none_left = Flow { came: 5, left: 0 };
    assert!([None, Some(none_left)].contains(&state.flow), "{state:?}");
    let mut consumer = fixture.consume(&pipe, 2).await;
    let held = [next(&mut consumer).await, next(&mut consumer).await];
    seen(3, 1).await;
    for delivery in held {
        assert_eq!(delivery.delivery_count, 0);
        delivery.ack();
    }
    assert_eq!(next_numbers(&mut consumer, 3).await, [2, 3, 4]);
    let state = seen(0, 1).await;
    let all_left = Flow { came: 5, left: 5 };
    assert!([None, Some(all_left)].contains(&state.flow), "{state:?}");
    if let Some(all) = broker.look_at_all().await.unwrap() {
        let messages = all.get(&*pipe).map(|state| state.messages);
        assert_eq!(messages, Some(0));
    }
}

pub async fn peeked_messages_stay_as_they_are(fixture: TestBroker) {
    let (pipe, broker) = (pipe(), &fixture.broker);
    fixture.publish(&pipe, 0..5).await;
    let peek = async |limit, bytes| {
        let peeked = broker.peek(&pipe, limit, bytes).await.unwrap();
        peeked.map(|messages| {
            let texts = messages.iter().map(|message| &message.body[..]);
            texts
                .map(|text| String::from_utf8_lossy(text).into_owned())
                .collect::<Vec<_>>()
        })
    };
    let texts = |peeked: &[&str]| Some(peeked.iter().map(ToString::to_string).collect());
    for _ in 0..3 {
        for (limit, bytes, expected) in [
            (3, 1000, &["0", "1", "2"][..]),
            (100, 1, &["0"]),
            (0, 1000, &[]),
        ] {
            let peeked = peek(limit, bytes).await;
            // A broker that cannot read without taking says so, and takes nothing.
            assert!(
                peeked.is_none() && broker.kind() == "rabbitmq" || peeked == texts(expected),
                "{peeked:?}"
            );
        }
    }
    let nowhere = broker.peek(&crate::pipe(), 1, 1000).await.unwrap();
    assert!(nowhere.is_none_or(|messages| messages.is_empty()));
    let mut consumer = fixture.consume(&pipe, 1).await;
    let first = next(&mut consumer).await;
    assert_eq!((&first.body()[..], first.delivery_count), (&b"0"[..], 0));
    first.ack();
    assert_eq!(next_numbers(&mut consumer, 4).await, [1, 2, 3, 4]);
}

/// Waits for this message. Other tests on a shared server send some, too. Fails if `never` arrives
/// before it.
async fn wait_for_message(events: &mut Announcements, text: &str, never: &str) {
    loop {
        match events.next().await.unwrap() {
            Event::Message(body) if body == text => return,
            Event::Message(body) => assert_ne!(body, never),
            Event::Missed => {}
        }
    }
}

pub async fn signs_of_life_reach_those_who_listen_to_them_and_no_others(fixture: TestBroker) {
    let broker = &fixture.broker;
    assert!(broker.carries_signs());
    let mut signs = broker.signs().await.unwrap();
    let mut announcements = broker.announcements().await.unwrap();
    assert_eq!(signs.next().await, Some(Event::Missed));
    assert_eq!(announcements.next().await, Some(Event::Missed));
    let (sign, announcement) = (pipe().to_string(), pipe().to_string());
    broker.tell(sign.clone().into()).await.unwrap();
    broker.announce(announcement.clone().into()).await.unwrap();
    wait_for_message(&mut announcements, &announcement, &sign).await;
    wait_for_message(&mut signs, &sign, &announcement).await;
    broker.tell(announcement.clone().into()).await.unwrap();
    wait_for_message(&mut signs, &announcement, "").await;
}

/// Waits until somebody receives the questions about a pipe, and answers them with their own text.
pub async fn wait_until_answered(broker: &dyn Broker, pipe: &str, queries: &mut Queries) {
    let asked = wait_for("who answers", async || {
        let asking = broker.ask(pipe, "?".into(), PATIENCE);
        let answering = async {
            let query = queries.next().await.unwrap();
            let body = query.body.clone();
            query.answer(body);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            asked = asking => asked.map_err(|error| error.to_string()),
            () = answering => unreachable!(),
        }
    });
    assert_eq!(asked.await, "?");
}

pub async fn questions_reach_only_those_who_answer_and_each_one_of_them(fixture: TestBroker) {
    for asker in [
        fixture.in_another_process().await,
        Arc::clone(&fixture.broker),
    ] {
        ask_all_kinds_of_questions(&fixture, asker).await;
    }
}

async fn ask_all_kinds_of_questions(fixture: &TestBroker, from: Arc<dyn Broker>) {
    let (pipe, limit) = (pipe(), Duration::from_secs(30));
    let nobody = Unanswered::Nobody(pipe.to_string());
    // The pipe itself gets none, even if it is consumed.
    let _consumer = fixture.consume(&pipe, 10).await;
    let asked = in_time("a refusal", from.ask(&pipe, "?".into(), limit)).await;
    assert_eq!(asked, Err(nobody.clone()));
    let mut first = fixture.broker.queries(&pipe).await.unwrap();
    wait_until_answered(&*from, &pipe, &mut first).await;
    // A hundred at once; the answers come in another order.
    let answering = async {
        let mut held = Vec::new();
        for n in 0..100 {
            held.push(first.next().await.unwrap());
            if n % 10 == 9 {
                for query in held.drain(..).rev() {
                    let body = query.body.clone();
                    query.answer(body);
                }
            }
        }
    };
    let asking = join_all((0..100).map(|n: u32| {
        let from = Arc::clone(&from);
        let pipe = Arc::clone(&pipe);
        async move {
            let asked = from.ask(&pipe, n.to_string().into(), limit).await;
            assert_eq!(asked.unwrap(), n.to_string());
        }
    }));
    in_time("all answers", async { tokio::join!(answering, asking) }).await;
    // One that is dropped has no answer, and nobody waits for it.
    let dropping = async { drop(first.next().await) };
    let (asked, ()) = in_time("no answer", async {
        tokio::join!(from.ask(&pipe, "?".into(), limit), dropping)
    })
    .await;
    assert_eq!(asked, Err(Unanswered::NoAnswer(pipe.to_string())));
    // One that waits for no answer is known to be gone.
    let short = Duration::from_millis(300);
    let holding = async {
        let mut query = first.next().await.unwrap();
        query.abandoned().await;
    };
    let (asked, ()) = in_time("the end of the time", async {
        tokio::join!(from.ask(&pipe, "?".into(), short), holding)
    })
    .await;
    // Which of the two is told depends on whose time ends first.
    let name = pipe.to_string();
    let ends = [
        Unanswered::InTime(name.clone(), short),
        Unanswered::NoAnswer(name),
    ];
    assert!(ends.contains(asked.as_ref().unwrap_err()), "{asked:?}");
    assert_eq!(from.depth(&pipe).await.unwrap(), 0);
    drop(first);
    wait_for("nobody", async || {
        match from.ask(&pipe, "?".into(), short).await {
            Err(Unanswered::Nobody(_)) => Ok(()),
            asked => Err(format!("{asked:?}")),
        }
    })
    .await;
}
