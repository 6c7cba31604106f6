//! The outputs of a job, as a program reads them from the output pipe.

use std::collections::BTreeMap;

use contract::RangeItem;
use contract::rest::{NewJob, OnFailure};
use framework::{OrFail, Outputs, Reply};
use harness::in_time;

use crate::fixture::Fixture;
use crate::workers::Each;

stories![outputs_tell_their_job_their_item_and_whether_it_has_failed];

async fn outputs_tell_their_job_their_item_and_whether_it_has_failed(fixture: Fixture) {
    let worker = Each((), async |(), item: RangeItem, _| match item.number {
        1 => Ok(Reply::send(item)),
        2 => Ok(Reply::failure(item)),
        3 => Err("three is not for me").or_fail(),
        _ => Err("what is this?").or_invalid(),
    });
    let system = fixture.run(worker).await;
    let job = NewJob {
        on_failure: OnFailure::Continue,
        ..fixture.range(4)
    };
    system.client.put("j", &job).await.unwrap();
    let broker = system.running.broker();
    let mut outputs = Outputs::<RangeItem>::of(broker, &fixture.pipe("output"))
        .await
        .unwrap();
    let mut seen = BTreeMap::new();
    while seen.len() < 4 {
        let next = in_time("an output", outputs.next()).await.unwrap();
        let output = next.unwrap();
        let told = match &output.result {
            Ok(item) => format!("{} negative={}", item.number, output.is_negative),
            Err(failure) => format!("{failure} invalid={}", failure.is_invalid),
        };
        assert_eq!(output.job.as_deref(), Some("j"), "{output:?}");
        assert_eq!(output.partition.as_deref(), Some(fixture.partition()));
        let label = format!("number {}", output.task.as_deref().unwrap());
        assert_eq!(output.label, Some(label));
        seen.insert(output.task.clone().unwrap(), told);
        output.done();
    }
    let expected = [
        ("1", "1 negative=false"),
        ("2", "2 negative=true"),
        ("3", "three is not for me invalid=false"),
        ("4", "what is this? invalid=true"),
    ];
    assert_eq!(
        seen,
        expected
            .map(|(task, told)| (task.to_owned(), told.to_owned()))
            .into()
    );
    system.ended("j").await;
    system.stop().await;
}
