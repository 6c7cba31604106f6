//! Jobs that are spread over several tracking pipes.

use contract::{TaskMessage, TrackingShards};
use framework::broker::Broker;
use harness::in_time;
use job_service::ServiceOptions;
use reqwest::Method;

use crate::service::{Backend, Service, new_job};

#[tokio::test]
async fn jobs_are_spread_over_shards_that_the_store_and_the_list_of_pipes_know() {
    let shards = TrackingShards::new(3).unwrap();
    // Incarnations follow each other there without gaps.
    let spread = |options: &mut ServiceOptions| options.tracking_shards = shards;
    let service = Service::start_with(Backend::Sqlite, spread).await;
    let noted = async || service.store.tracking_shards("tracking-in").await.unwrap();
    assert_eq!(noted().await, TrackingShards::ONE);
    for job in ["a", "b", "c"] {
        service.put(job, &new_job()).await.is(201);
    }
    assert_eq!(noted().await, shards);
    let mut consumer = service.broker.consume("batch-in", 3).await.unwrap();
    let mut pipes: Vec<String> = Vec::new();
    for _ in 0..3 {
        let delivery = in_time("a start message", consumer.next()).await.unwrap();
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        delivery.ack();
        pipes.push(message.tracking.unwrap().tracking_pipe.unwrap().into());
    }
    pipes.sort();
    assert_eq!(pipes, ["tracking-in-0", "tracking-in-1", "tracking-in-2"]);

    let list = service.call(Method::GET, "/job-service/v1/pipes", None);
    let list = list.await.is(200).json();
    let listed = list["pipes"].as_array().unwrap().iter();
    let listed: Vec<&str> = listed.map(|pipe| pipe["name"].as_str().unwrap()).collect();
    for pipe in ["tracking-in"]
        .into_iter()
        .chain(pipes.iter().map(String::as_str))
    {
        assert!(listed.contains(&pipe), "{pipe} in {listed:?}");
    }
    let mut reserved = new_job();
    reserved["task"]["taskPipe"] = "tracking-in-9".into();
    let refused = service.put("d", &reserved).await.is(400);
    refused.contains("which is the tracking pipe");
}
