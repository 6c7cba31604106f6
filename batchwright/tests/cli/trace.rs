//! The trace of a job, as a collector receives it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use contract::rest::{JobTask, NewJob};
use contract::{BatchTask, JobStatus, TaskData};
use harness::wait_for;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::binary::Home;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[tokio::test]
async fn job_is_one_trace_from_the_request_to_its_last_report() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let collector = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/v1/traces"))
        .respond_with(ResponseTemplate::new(200))
        .mount(&collector)
        .await;
    let home = Home::new();
    home.write("words", "one\ntwo\nthree\n");
    let up = home.up_with(&["--otlp-endpoint", &collector.uri()]).await;
    let batch = BatchTask {
        batch_definition: Some("{\"files\":[\"words\"],\"linesPerItem\":1}".to_owned()),
        batch_type: Some("lines".to_owned()),
        target_pipe: Some("worker-example-in".to_owned()),
        ..BatchTask::default()
    };
    let task = JobTask {
        task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
        task_api_version: Some(BatchTask::API_VERSION),
        task_data: Some(serde_json::to_value(&batch).unwrap()),
        task_pipe: Some("worker-batch-in".to_owned()),
        target_pipe: Some("worker-example-out".to_owned()),
        ..JobTask::default()
    };
    let request = NewJob {
        task: Some(task),
        ..NewJob::default()
    };
    let url = format!("{}/partitions/default/jobs/j", home.url());
    let created = reqwest::Client::new()
        .put(url)
        .header("traceparent", format!("00-{TRACE}-{CLIENT}-01"))
        .header("tracestate", "vendor=7")
        .json(&request)
        .send()
        .await
        .unwrap();
    assert_eq!(created.status(), 201);
    wait_for("the job to complete", async || {
        let job = home.client().get("j").await.unwrap();
        if job.status == JobStatus::Completed {
            Ok(())
        } else {
            Err(format!("{job:?}"))
        }
    })
    .await;
    assert_eq!(up.stop().await, Some(0));
    let spans: Vec<Span> = collector
        .received_requests()
        .await
        .unwrap()
        .iter()
        .map(|request| ExportTraceServiceRequest::decode(&request.body[..]).unwrap())
        .flat_map(|exported| exported.resource_spans)
        .flat_map(|resource| resource.scope_spans)
        .flat_map(|scope| scope.spans)
        .collect();
    let names: BTreeMap<String, &str> = spans
        .iter()
        .map(|span| (hex(&span.span_id), span.name.as_str()))
        .chain([(CLIENT.to_owned(), "client")])
        .collect();
    // How often a span of this name is a child of one of that name.
    let mut tree: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for span in &spans {
        assert_eq!(hex(&span.trace_id), TRACE, "{span:?}");
        let parent = names[&hex(&span.parent_span_id)];
        *tree.entry((parent, span.name.as_str())).or_default() += 1;
    }
    let reports: usize = tree
        .iter()
        .filter(|((_, child), _)| *child == "process worker-jobtracking-in")
        .map(|(_, count)| count)
        .sum();
    assert!(reports > 0, "{tree:?}");
    tree.retain(|(_, child), _| *child != "process worker-jobtracking-in");
    assert_eq!(
        tree.into_iter().collect::<Vec<_>>(),
        [
            (("client", "create job"), 1),
            (("create job", "process worker-batch-in"), 1),
            (("process worker-batch-in", "process worker-example-in"), 3),
        ]
    );
    let attributes: BTreeMap<&str, String> = spans
        .iter()
        .filter(|span| span.name == "process worker-batch-in")
        .flat_map(|span| &span.attributes)
        .map(|attribute| (attribute.key.as_str(), format!("{:?}", attribute.value)))
        .collect();
    assert!(
        attributes["batchwright.job"].contains("default:j")
            && attributes.contains_key("batchwright.correlation_id"),
        "{attributes:?}"
    );
}
