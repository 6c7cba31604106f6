//! `Browser`: Debian's chromium, driven over the `WebDriver` protocol.
//!
//! The protocol is a dozen requests with JSON, which the HTTP client of the harness can send; a
//! library for it would be a dozen crates.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use faults::{Home, Supervisor, free_port, program};
use reqwest::Method;
use serde_json::{Value, json};

use crate::http::HttpClient;
use crate::wait::in_time;

/// How long the browser may take for one command, such as loading a page.
const COMMAND: Duration = Duration::from_secs(20);
/// The name under which the protocol returns an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser without a window on the screen. Dropping it, or the end of this process, ends it.
#[derive(Debug)]
pub struct Browser {
    _supervisor: Supervisor,
    session: String,
}

/// A tab of the browser, for one test at a time.
#[derive(Debug)]
pub struct Tab {
    client: HttpClient,
}

impl Browser {
    /// Returns whether Debian's packages `chromium` and `chromium-driver` are installed.
    pub fn is_installed() -> bool {
        ["chromium", "chromedriver"]
            .iter()
            .all(|name| program(name, &[PathBuf::from("/usr/bin")]).is_some())
    }

    /// Starts a browser.
    pub async fn start() -> anyhow::Result<Self> {
        let driver = program("chromedriver", &[]).context("chromium-driver is not installed")?;
        let chromium = program("chromium", &[]).context("chromium is not installed")?;
        let home = Home::new(&["nobody"])?;
        let port = free_port();
        let mut command = Command::new(driver);
        command.arg(format!("--port={port}"));
        // What a browser keeps is in its folder, which is removed with it.
        command.env("HOME", home.path());
        command.env("TMPDIR", home.path());
        let profile = home.path().join("profile");
        let supervisor = home.supervise("chromedriver", "TERM", &command)?;
        let root = format!("http://127.0.0.1:{port}");
        supervisor
            .start(async || {
                let status = send(&HttpClient::new(&*root), Method::GET, "/status", None).await?;
                ensure!(status["ready"] == true, "{status}");
                Ok(())
            })
            .await?;
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--disable-background-networking",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            "--lang=en-US",
            &format!("--user-data-dir={}", profile.display()),
        ];
        let options = json!({"binary": chromium, "args": arguments});
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
            "timeouts": {"script": 15000, "pageLoad": 15000, "implicit": 0},
        }}});
        let client = HttpClient::new(&*root);
        let session = send(&client, Method::POST, "/session", Some(wanted)).await?;
        let id = session["sessionId"].as_str();
        let id = id.with_context(|| format!("no session: {session}"))?;
        Ok(Self {
            _supervisor: supervisor,
            session: format!("{root}/session/{id}"),
        })
    }

    /// Opens a tab and makes it the current one.
    pub async fn open(&self) -> anyhow::Result<Tab> {
        let tab = Tab {
            client: HttpClient::new(&*self.session),
        };
        let window = tab.post("/window/new", json!({"type": "tab"})).await?;
        tab.post("/window", json!({"handle": window["handle"]}))
            .await?;
        tab.resize(1280, 900).await?;
        Ok(tab)
    }
}

impl Tab {
    /// Loads a page.
    pub async fn go(&self, url: &str) -> anyhow::Result<()> {
        self.post("/url", json!({"url": url})).await.map(drop)
    }

    /// Returns the URL of the page.
    pub async fn url(&self) -> anyhow::Result<String> {
        let url = send(&self.client, Method::GET, "/url", None).await?;
        Ok(url.as_str().unwrap_or_default().to_owned())
    }

    /// Sets the size of the window.
    pub async fn resize(&self, width: u32, height: u32) -> anyhow::Result<()> {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size)
            .await
            .map(drop)
    }

    /// Runs the body of a function and returns its result; of a promise, what it resolves to.
    pub async fn script(&self, body: &str) -> anyhow::Result<Value> {
        let script = json!({"script": body, "args": []});
        self.post("/execute/sync", script).await
    }

    /// Clicks the element that a CSS selector finds.
    pub async fn click(&self, css: &str) -> anyhow::Result<()> {
        let element = self.find(css).await?;
        self.post(&format!("/element/{element}/click"), json!({}))
            .await
            .map(drop)
    }

    /// Types into the element that a CSS selector finds.
    pub async fn type_into(&self, css: &str, text: &str) -> anyhow::Result<()> {
        let element = self.find(css).await?;
        let path = format!("/element/{element}/value");
        self.post(&path, json!({"text": text})).await.map(drop)
    }

    /// Presses a key, as on the keyboard: `\u{E004}` is the tabulator, `\u{E007}` is Enter.
    pub async fn press(&self, key: char) -> anyhow::Result<()> {
        let actions = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        let keyboard = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        self.post("/actions", keyboard).await.map(drop)
    }

    /// Returns the text that a viewer sees of the element that a CSS selector finds.
    pub async fn text(&self, css: &str) -> anyhow::Result<String> {
        let path = format!("/element/{}/text", self.find(css).await?);
        let text = send(&self.client, Method::GET, &path, None).await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Returns a picture of the window, as PNG.
    pub async fn picture(&self) -> anyhow::Result<Vec<u8>> {
        let picture = send(&self.client, Method::GET, "/screenshot", None).await?;
        let text = picture.as_str().context("no picture")?;
        Ok(STANDARD.decode(text)?)
    }

    /// Returns what the tabs have logged of a kind since the last call: `performance`, which has
    /// the requests, or `browser`, which has the errors.
    pub async fn log(&self, kind: &str) -> anyhow::Result<Vec<Value>> {
        let log = self.post("/se/log", json!({"type": kind})).await?;
        Ok(log.as_array().cloned().unwrap_or_default())
    }

    /// Calls a method of chromium's own protocol.
    pub async fn devtools(&self, method: &str, params: Value) -> anyhow::Result<Value> {
        let call = json!({"cmd": method, "params": params});
        self.post("/goog/cdp/execute", call).await
    }

    /// Closes the tab, and makes another one the current one.
    pub async fn close(self) -> anyhow::Result<()> {
        let left = send(&self.client, Method::DELETE, "/window", None).await?;
        let last = left.as_array().and_then(|left| left.last());
        let last = last.context("the last tab was closed")?.clone();
        self.post("/window", json!({"handle": last}))
            .await
            .map(drop)
    }

    async fn find(&self, css: &str) -> anyhow::Result<String> {
        let by = json!({"using": "css selector", "value": css});
        let found = self.post("/element", by).await?;
        let id = found[ELEMENT].as_str();
        Ok(id
            .with_context(|| format!("{css} finds {found}"))?
            .to_owned())
    }

    async fn post(&self, path: &str, body: Value) -> anyhow::Result<Value> {
        send(&self.client, Method::POST, path, Some(body)).await
    }
}

/// Sends a command and returns its value.
async fn send(
    client: &HttpClient,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> anyhow::Result<Value> {
    let request = client.request(method, path).timeout(COMMAND);
    let request = match body {
        Some(body) => request.json(&body),
        None => request,
    };
    let exchange = async { request.send().await?.json::<Value>().await };
    let mut answer = in_time("the browser", exchange).await?;
    let value = answer["value"].take();
    if let Some(error) = value["error"].as_str() {
        bail!("{path}: {error}: {}", value["message"]);
    }
    Ok(value)
}
