//! What the web page shows for other clients runs as it is shown.

use harness::wait_for;

use crate::binary::{Home, run_script};

/// Returns a code block of a page below this heading, as a person copies it.
fn block(page: &str, heading: &str) -> String {
    let (_, behind) = page
        .split_once(&format!("<h2>{heading}</h2><pre><code>"))
        .unwrap();
    let (text, _) = behind.split_once("</code></pre>").unwrap();
    let signs = [
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#38;", "&"),
    ];
    signs.iter().fold(text.to_owned(), |text, (escaped, sign)| {
        text.replace(escaped, sign)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_of_the_form_runs_as_curl_and_as_a_command() {
    let home = Home::new();
    let _up = home.up().await;
    let client = home.client();
    for (heading, job) in [("As curl", "with-curl"), ("As a command", "with-command")] {
        // A name that a shell would read otherwise.
        let form = format!(
            "id={job}&kind=range&definition=1-3&itemPipe=nobody-in&outputs=none&taskPipe=batch-in\
             &name=it%27s+%22%24HOME%22+%26+%3Cmore%3E&labels=team%3Da+b&onFailure=continue&do=show"
        );
        let root = home.url().replace("/job-service/v1", "");
        let ask =
            format!("curl -sf '{root}/partitions/default/submit' -H 'Origin: {root}' -d '{form}'");
        let page = run_script(&ask, &home).await.with(0).out;
        let shown = block(&page, heading);
        run_script(&shown, &home).await.with(0);
        let created = wait_for("the job", async || {
            client.get(job).await.map_err(|error| error.to_string())
        })
        .await;
        assert_eq!(
            created.name.as_deref(),
            Some("it's \"$HOME\" & <more>"),
            "{shown}"
        );
        assert_eq!(created.labels["team"].as_deref(), Some("a b"));
        let same = client.definition(job).await.unwrap();
        let data = same.task.unwrap().task_data.unwrap();
        assert_eq!(data["batchDefinition"], "1-3");
    }
}
