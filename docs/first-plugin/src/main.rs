//! Fetches the pages of a list of URLs. With `worker` or `batch-worker` it is one process of a
//! system on servers.

use std::error::Error;
use std::io;

use batchwright::batch::{Batch, BatchPlugin, BatchWorker, Part, Root, Source, SplitError};
use batchwright::{
    Context, Outputs, Reply, Runtime, Settings, Stack, StackOptions, TaskData, TaskError, Worker,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Serialize, Deserialize)]
struct Page {
    url: String,
}

impl TaskData for Page {
    const CLASSIFIER: &'static str = "Page";
    const API_VERSION: i32 = 1;
}

#[derive(Serialize, Deserialize)]
struct Fetched {
    url: String,
    bytes: usize,
}

impl TaskData for Fetched {
    const CLASSIFIER: &'static str = "Fetched";
    const API_VERSION: i32 = 1;
}

struct Fetcher;

impl Worker for Fetcher {
    type Input = Page;
    type Output = Fetched;

    async fn run(&self, page: Page, _: Context) -> Result<Reply<Fetched>, TaskError> {
        let Some(text) = get(&page.url).await? else {
            return Err(TaskError::failed("there is no such page"));
        };
        let (url, bytes) = (page.url, text.len());
        Ok(Reply::send(Fetched { url, bytes }))
    }
}

/// Splits a list of URLs, one on a line. A definition is the URL of the list.
struct UrlList;

impl BatchPlugin for UrlList {
    const NAME: &'static str = "url-list";

    async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        let list = match batch.definition.strip_prefix("these:\n") {
            Some(lines) => lines.to_owned(),
            None => fetch_list(batch.definition).await?,
        };
        let urls: Vec<&str> = list.lines().collect();
        if urls.len() <= batch.max_parts {
            let page = |url: &&str| {
                let page = Page {
                    url: (*url).to_owned(),
                };
                batch.labelled_item(Page::CLASSIFIER, &page, *url)
            };
            return urls.iter().map(page).collect();
        }
        // Too many for one split: sub-batches. Each carries its lines, so that a list that changes
        // meanwhile is read only once.
        let lines = urls.chunks(urls.len().div_ceil(batch.max_parts));
        let batches = lines.map(|urls| format!("these:\n{}", urls.join("\n")));
        Ok(batches.map(Part::Batch).collect())
    }

    fn source(&self, batch: Batch<'_>, parts: &[Part]) -> Option<Source> {
        Some(batch.parts_as_source("the list of URLs", parts))
    }
}

async fn fetch_list(url: &str) -> Result<String, SplitError> {
    if !url.starts_with("http://") {
        let text = format!("{url:?} is not the URL of a list; expected http://…");
        return Err(SplitError::Definition(text)); // the definition is wrong: the task fails
    }
    let list = get(url).await?; // the server is away: the split runs again
    list.ok_or_else(|| SplitError::Missing(format!("there is no list at {url}")))
}

/// Returns the text at a URL, or `None` if there is none. It stands for the HTTP client that you
/// like.
async fn get(url: &str) -> io::Result<Option<String>> {
    let address = url.trim_start_matches("http://");
    let (host, path) = address.split_once('/').unwrap_or((address, ""));
    let mut stream = TcpStream::connect(host).await?;
    let request = format!("GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (head, text) = response.split_once("\r\n\r\n").unwrap_or_default();
    match head.split(' ').nth(1) {
        Some("200") => Ok(Some(text.to_owned())),
        Some("404") => Ok(None),
        _ => Err(io::Error::other(head.to_owned())),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("worker") => Runtime::from_env()?.worker(Fetcher).run().await?,
        Some("batch-worker") => {
            let worker = BatchWorker::new(1000).with_built_in(Root::new("."));
            Runtime::from_env()?
                .worker(worker.with(UrlList))
                .run()
                .await?;
        }
        _ => everything().await?,
    }
    Ok(())
}

/// Runs everything in this process, and prints what is fetched.
async fn everything() -> Result<(), Box<dyn Error>> {
    let mut settings = Settings::new("fetcher");
    settings.output = Some("fetched".into());
    let stack = Stack::new(StackOptions::embedded("data"));
    let stack = stack.worker(settings, Fetcher).plugin(UrlList);
    let running = stack.start().await?;
    println!("the API is at {}", running.api_url());
    let fetched = Outputs::of(running.broker(), "fetched").await?;
    let (stopped, printed) = tokio::join!(running.until_asked_to_stop(), print(fetched));
    stopped?;
    printed
}

async fn print(mut fetched: Outputs<Fetched>) -> Result<(), Box<dyn Error>> {
    while let Some(output) = fetched.next().await? {
        match &output.result {
            Ok(page) => println!("{} has {} bytes", page.url, page.bytes),
            Err(failure) => println!("{}: {failure}", output.name()),
        }
        output.done();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use batchwright::{batch, batch_job};

    use super::*;

    /// Serves `/list`, which names 25 pages, and 24 of them.
    fn server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let pages = (1..=25).map(|page| format!("{url}/{page}\n"));
        let list = pages.collect::<String>();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = [0; 1000];
                let length = stream.read(&mut request).unwrap();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let (status, text) = match request.split(' ').nth(1) {
                    Some("/list") => (200, list.as_str()),
                    Some("/25") => (404, ""),
                    _ => (200, "hello"),
                };
                write!(stream, "HTTP/1.0 {status} \r\n\r\n{text}").unwrap();
            }
        });
        url
    }

    #[tokio::test]
    async fn splits_a_list_down_to_its_pages() {
        let url = server();
        let batch = batch::testing::batch(format!("{url}/list"));
        let items = batch.items(&UrlList).await.unwrap();
        assert_eq!(items.len(), 25);
        assert_eq!(items[24].label, Some(format!("{url}/25")));
        let wrong = batch::testing::batch("list").items(&UrlList).await;
        assert!(matches!(wrong, Err(SplitError::Definition(_))));
    }

    #[tokio::test]
    async fn fetches_every_page_that_is_there() {
        let url = server();
        let folder = tempfile::tempdir().unwrap();
        let stack = Stack::new(StackOptions::embedded(folder.path()));
        let stack = stack.worker(Settings::new("fetcher"), Fetcher);
        let list = format!("{url}/list");
        let mut job = batch_job("url-list", list, "fetcher-in", Some("fetched"));
        job.on_failure = batchwright::contract::OnFailure::Continue;
        let drained = stack.plugin(UrlList).drain::<Fetched>(&job).await.unwrap();
        assert_eq!((drained.job.items.done, drained.job.items.failed), (24, 1));
        let failed = &drained.job.failures[0];
        assert_eq!(failed.label, Some(format!("{url}/25")));
    }
}
