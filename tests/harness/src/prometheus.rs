//! `Prometheus`: one server for a test, which scrapes a process, checks rules and evaluates
//! queries.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use faults::{Home, Supervisor, free_port, program};
use serde_json::Value;

use crate::http::HttpClient;
use crate::wait::in_time;

/// A server that scrapes every second. Dropping it stops the server.
#[derive(Debug)]
pub struct Prometheus {
    _supervisor: Supervisor,
    address: String,
}

impl Prometheus {
    /// Returns whether Debian's package `prometheus` is installed.
    pub fn is_installed() -> bool {
        ["prometheus", "promtool"]
            .iter()
            .all(|name| program(name, &[PathBuf::from("/usr/bin")]).is_some())
    }

    /// Starts a server with the job `batchwright` for the process at this address, and with the
    /// rules in this file.
    pub async fn start(target: &str, rules: &Path) -> anyhow::Result<Self> {
        let binary = program("prometheus", &[]).context("prometheus is not installed")?;
        let home = Home::new(&["prometheus", "nobody"])?;
        let inside = |name: &str| home.path().join(name);
        std::fs::copy(rules, inside("rules.yaml"))?;
        std::fs::write(
            inside("prometheus.yml"),
            format!(
                "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
                 rule_files: [rules.yaml]\n\
                 scrape_configs: [{{job_name: batchwright, static_configs: [{{targets: ['{target}']}}]}}]\n"
            ),
        )?;
        let checked = home
            .command(program("promtool", &[]).context("promtool is not installed")?)
            .args(["check", "config", "prometheus.yml"])
            .output()?;
        ensure!(checked.status.success(), "{checked:?}");
        let address = format!("127.0.0.1:{}", free_port());
        let mut server = Command::new(binary);
        server
            .arg(format!("--web.listen-address={address}"))
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data");
        let supervisor = home.supervise("Prometheus", "TERM", &server)?;
        supervisor
            .start(async || {
                let query = ask(&address, "/api/v1/query", &[("query", "1")]);
                query.await.map(drop)
            })
            .await?;
        Ok(Self {
            _supervisor: supervisor,
            address,
        })
    }

    /// Evaluates a query now, and returns the samples.
    pub async fn query(&self, query: &str) -> anyhow::Result<Vec<Value>> {
        let data = ask(&self.address, "/api/v1/query", &[("query", query)]).await?;
        let samples = data["result"].as_array().cloned();
        samples.with_context(|| format!("{query} returns no list: {data}"))
    }

    /// Returns the groups of rules, each with the health of its rules.
    pub async fn rules(&self) -> anyhow::Result<Vec<Value>> {
        let data = ask(&self.address, "/api/v1/rules", &[]).await?;
        let groups = data["groups"].as_array().cloned();
        groups.with_context(|| format!("no list of groups: {data}"))
    }
}

/// Asks the server, and returns the data of its response.
async fn ask(address: &str, path: &str, parameters: &[(&str, &str)]) -> anyhow::Result<Value> {
    let url = reqwest::Url::parse_with_params(&format!("http://{address}{path}"), parameters)?;
    let client = HttpClient::new(url.as_str());
    let response = in_time(
        "Prometheus",
        client.request(reqwest::Method::GET, "").send(),
    )
    .await?;
    let answer: Value = response.json().await?;
    ensure!(answer["status"] == "success", "{answer}");
    Ok(answer["data"].clone())
}
