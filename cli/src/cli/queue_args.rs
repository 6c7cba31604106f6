//! The flags that say how the queues of RabbitMQ are declared, the same for every command that uses
//! a broker.

use clap::Args;
use framework::broker::amqp::QueueType;

#[derive(Debug, Clone, Copy, Args)]
pub struct QueueArgs {
    /// Type of the RabbitMQ queues: `quorum` or `classic`; all programs on one broker must use the
    /// same.
    #[arg(
        long,
        env = "BATCHWRIGHT_QUEUE_TYPE",
        default_value = "quorum",
        value_name = "TYPE"
    )]
    pub queue_type: QueueType,
    /// `x-max-priority` of classic queues, if other programs declare them with it; 0 for none.
    #[arg(
        long,
        env = "BATCHWRIGHT_MAX_PRIORITY",
        default_value_t = 0,
        value_name = "PRIORITY"
    )]
    pub max_priority: u8,
}
