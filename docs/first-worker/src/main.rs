use batchwright::{Stack, StackError, StackOptions};
use framework::{Context, OrFail, Reply, Settings, TaskData, TaskError, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Amount {
    value: String,
}

impl TaskData for Amount {
    const CLASSIFIER: &'static str = "ListItem";
    const API_VERSION: i32 = 1;
}

struct Doubler;

impl Worker for Doubler {
    type Input = Amount;
    type Output = Amount;

    async fn run(&self, amount: Amount, _: Context) -> Result<Reply<Amount>, TaskError> {
        let number: u64 = amount.value.parse().or_fail()?;
        Ok(Reply::send(Amount {
            value: (2 * number).to_string(),
        }))
    }
}

#[tokio::main]
async fn main() -> Result<(), StackError> {
    let settings = Settings {
        output: Some("doubled".into()),
        ..Settings::new("doubler")
    };
    let running = Stack::new(StackOptions::embedded("data"))
        .worker(settings, Doubler)
        .start()
        .await?;
    println!("the API is at {}", running.api_url());
    running.until_asked_to_stop().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_number_is_doubled_and_anything_else_fails() {
        let run = framework::testing::run(&Doubler, Amount { value: "21".into() }).await;
        assert_eq!(run.sent().unwrap().value, "42");
        let run = framework::testing::run(
            &Doubler,
            Amount {
                value: "many".into(),
            },
        )
        .await;
        assert!(run.failure().unwrap().contains("invalid digit"));
    }
}
